/* Whole files, many in one call. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>

/* Reads the file at each path into `to`, up to `rooms[i]` bytes, one behind another's room; what was read, or -errno,
 * becomes `got[i]`. */
void shardio_read_files(int64_t count, const char *const *paths, const int64_t *rooms, uint8_t *to, int64_t *got) {
    for (int64_t i = 0; i < count; to += rooms[i++]) {
        int file = open(paths[i], O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would wait for a writer */
        got[i] = file < 0 ? -errno : 0;
        while (file >= 0 && got[i] >= 0 && got[i] < rooms[i]) {
            ssize_t more = read(file, to + got[i], (size_t)(rooms[i] - got[i]));
            if (more < 0 && errno != EINTR)
                got[i] = -errno;
            else if (more > 0)
                got[i] += more;
            if (more == 0 || got[i] == rooms[i] - 1) /* a read that leaves room has come to the end */
                break;
        }
        if (file >= 0)
            close(file);
    }
}
