/* The status of an open file. */
#ifndef SHARDIO_STATUS_H
#define SHARDIO_STATUS_H

#include <fcntl.h>
#include <stdint.h>
#include <sys/stat.h>

struct file_status {
    int64_t size, time; /* bytes; when it was modified, in ns */
    int regular;
};

/* Returns 0, or -1 where errno says why. */
static inline int file_status(int file, struct file_status *status) {
#ifdef __linux__
    struct statx found; /* not fstat, which is new in glibc 2.33: a wheel that uses it runs on no older system */
    if (statx(file, "", AT_EMPTY_PATH, STATX_TYPE | STATX_SIZE | STATX_MTIME, &found)) return -1;
    *status = (struct file_status){(int64_t)found.stx_size,
                                   found.stx_mtime.tv_sec * 1000000000 + found.stx_mtime.tv_nsec,
                                   S_ISREG(found.stx_mode)};
#else
    struct stat found;
    if (fstat(file, &found)) return -1;
#ifdef __APPLE__
    const struct timespec changed = found.st_mtimespec;
#else
    const struct timespec changed = found.st_mtim;
#endif
    *status = (struct file_status){(int64_t)found.st_size, (int64_t)changed.tv_sec * 1000000000 + changed.tv_nsec,
                                   S_ISREG(found.st_mode)};
#endif
    return 0;
}
#endif
