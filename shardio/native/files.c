/* Reading many whole files in one call, and opening one below a folder. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#ifndef SYS_openat2
#define SYS_openat2 437 /* the same number on all processors; Linux 5.6 and later */
#endif
#endif

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

/* Opens the file `name`, `a/b/c`, below an open folder for reading, through no symbolic link; no part of it is `..`.
 * Returns its descriptor, or -errno: -ENOSYS, or -EPERM in some containers, where the system has no such call. */
int32_t shardio_open_below(int32_t folder, const char *name) {
#ifdef __linux__
    const struct {
        uint64_t flags, mode, resolve;
    } how = {O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0, 0x04 /* RESOLVE_NO_SYMLINKS */};
    const long file = syscall(SYS_openat2, folder, name, &how, sizeof how);
    return file < 0 ? -errno : (int32_t)file;
#else
    (void)folder, (void)name;
    return -ENOSYS;
#endif
}
