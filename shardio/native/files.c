/* Reading many whole files in one call. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>

/* Reads up to `rooms[i]` bytes of the file at `paths[i]`, for each i, into consecutive regions of `to` of those sizes.
 * Sets `got[i]` to the number of bytes read, or to -errno. */
void shardio_read_files(int64_t count, const char *const *paths, const int64_t *rooms, uint8_t *to, int64_t *got) {
    for (int64_t i = 0; i < count; to += rooms[i++]) {
        int file = open(paths[i], O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* or a pipe would block for a writer */
        got[i] = file < 0 ? -errno : 0;
        while (file >= 0 && got[i] >= 0 && got[i] < rooms[i]) {
            ssize_t more = read(file, to + got[i], (size_t)(rooms[i] - got[i]));
            if (more < 0 && errno != EINTR)
                got[i] = -errno;
            else if (more > 0)
                got[i] += more;
            if (more == 0 || got[i] == rooms[i] - 1) /* of the expected size, which leaves one byte of room */
                break;
        }
        if (file >= 0)
            close(file);
    }
}
