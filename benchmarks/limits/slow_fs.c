/* A slow file system: the files of a folder, read only, behind a latency for each request and one bandwidth for all
 * bytes. It speaks the kernel's protocol (linux/fuse.h) itself, so that it needs no library; root mounts it.
 *
 *   cc -O3 -o slow_fs slow_fs.c -lpthread
 *   ./slow_fs FOLDER MOUNT_POINT LATENCY_MS MBYTE_PER_S COUNTERS      (0: no wait, no limit)
 *
 * It prints a line once it is mounted, and runs until its input ends; then it unmounts. COUNTERS is a file of four
 * numbers, 64 bits each: reads, their bytes, opens, and the error number that all reads shall fail with (0: none), which
 * another process may set. Looking up names waits for a latency too, as do opens; the kernel keeps both for a second.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { READS, BYTES, OPENS, ERROR, COUNTERS };
enum { THREADS = 64, MOST_NODES = 1 << 16, MOST_READ = 1 << 20 };
static const int64_t BURST = 1000000; /* nanoseconds that an idle disk saves up */
static int device;
static int64_t latency;
static double nanoseconds_per_byte;
static uint64_t *counters;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t free_at;
static char *nodes[MOST_NODES]; /* paths by node number; never forgotten */
static uint64_t node_count = 2; /* 1 is the root */

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void sleep_until(int64_t when) {
    struct timespec t = {when / 1000000000, when % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) {}
}

static void count(int which, uint64_t more) { __atomic_add_fetch(&counters[which], more, __ATOMIC_RELAXED); }

/* Wait for the latency of a request that began at `begun`, and for its bytes to pass. */
static void wait_for(int64_t begun, size_t bytes) {
    int64_t until = begun + latency;
    if (bytes && nanoseconds_per_byte > 0) {
        pthread_mutex_lock(&lock);
        int64_t least = now() - BURST;
        if (free_at < least) free_at = least;
        free_at += (int64_t)(bytes * nanoseconds_per_byte);
        if (free_at > until) until = free_at;
        pthread_mutex_unlock(&lock);
    }
    if (until > now()) sleep_until(until);
}

static void answer(uint64_t unique, int error, const void *data, size_t size) {
    struct fuse_out_header header = {.len = sizeof header + (error ? 0 : size), .error = -error, .unique = unique};
    struct iovec parts[2] = {{&header, sizeof header}, {(void *)data, size}};
    if (writev(device, parts, error || !size ? 1 : 2) < 0 && errno != ENOENT && errno != ENODEV) perror("answer");
}

static void fill(struct fuse_attr *attr, uint64_t node, const struct stat *found) {
    *attr = (struct fuse_attr){
        .ino = node, .size = found->st_size, .blocks = found->st_blocks, .mode = found->st_mode, .nlink = 1,
        .uid = found->st_uid, .gid = found->st_gid, .blksize = 4096,
        .atime = found->st_atim.tv_sec, .mtime = found->st_mtim.tv_sec, .ctime = found->st_ctim.tv_sec,
        .atimensec = found->st_atim.tv_nsec, .mtimensec = found->st_mtim.tv_nsec, .ctimensec = found->st_ctim.tv_nsec,
    };
}

static uint64_t node_of(const char *path) {
    pthread_mutex_lock(&lock);
    uint64_t node = 2;
    while (node < node_count && strcmp(nodes[node], path)) node++;
    if (node == node_count) {
        if (node == MOST_NODES || !(nodes[node] = strdup(path))) node = 0;
        else node_count++;
    }
    pthread_mutex_unlock(&lock);
    return node;
}

static void look_up(const struct fuse_in_header *in, const char *name) {
    char path[PATH_MAX];
    struct stat found;
    struct fuse_entry_out out = {.entry_valid = 1, .attr_valid = 1};
    snprintf(path, sizeof path, "%s/%s", nodes[in->nodeid], name);
    if (stat(path, &found)) return answer(in->unique, errno, NULL, 0);
    if (!(out.nodeid = node_of(path))) return answer(in->unique, ENOMEM, NULL, 0);
    fill(&out.attr, out.nodeid, &found);
    answer(in->unique, 0, &out, sizeof out);
}

static void list(const struct fuse_in_header *in, const struct fuse_read_in *ask, char *buffer) {
    DIR *folder = opendir(nodes[in->nodeid]);
    if (!folder) return answer(in->unique, errno, NULL, 0);
    size_t size = 0;
    uint64_t place = 0;
    for (struct dirent *entry; (entry = readdir(folder)); place++) {
        if (place < ask->offset) continue;
        size_t length = strlen(entry->d_name), whole = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + length);
        if (size + whole > ask->size || size + whole > MOST_READ) break;
        struct fuse_dirent *made = (struct fuse_dirent *)(buffer + size);
        memset(made, 0, whole);
        made->ino = entry->d_ino, made->off = place + 1, made->namelen = length, made->type = entry->d_type;
        memcpy(made->name, entry->d_name, length);
        size += whole;
    }
    closedir(folder);
    answer(in->unique, 0, buffer, size);
}

static void read_file(const struct fuse_in_header *in, const struct fuse_read_in *ask, char *buffer, int64_t begun) {
    uint64_t failing = __atomic_load_n(&counters[ERROR], __ATOMIC_RELAXED);
    if (failing) {
        wait_for(begun, 0);
        return answer(in->unique, (int)failing, NULL, 0);
    }
    ssize_t got = pread((int)ask->fh, buffer, ask->size < MOST_READ ? ask->size : MOST_READ, ask->offset);
    if (got < 0) return answer(in->unique, errno, NULL, 0);
    count(READS, 1), count(BYTES, got);
    wait_for(begun, got);
    answer(in->unique, 0, buffer, got);
}

static void *serve(void *unused) {
    (void)unused;
    size_t most = MOST_READ + (64 << 10);
    char *request = malloc(most), *buffer = malloc(MOST_READ);
    while (request && buffer) {
        ssize_t size = read(device, request, most);
        if (size < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT)) continue;
        if (size < (ssize_t)sizeof(struct fuse_in_header)) break; /* ENODEV: unmounted */
        const struct fuse_in_header *in = (struct fuse_in_header *)request;
        const void *body = request + sizeof *in;
        int64_t begun = now();
        switch (in->opcode) {
        case FUSE_INIT: {
            const struct fuse_init_in *ask = body;
            struct fuse_init_out out = {
                .major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION, .max_readahead = ask->max_readahead,
                .flags = ask->flags & (FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_MAX_PAGES | FUSE_PARALLEL_DIROPS),
                .max_background = THREADS, .congestion_threshold = THREADS, .max_write = MOST_READ, .time_gran = 1,
                .max_pages = MOST_READ / 4096,
            };
            answer(in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_LOOKUP:
            wait_for(begun, 0);
            look_up(in, body);
            break;
        case FUSE_GETATTR: {
            struct stat found;
            struct fuse_attr_out out = {.attr_valid = 1};
            wait_for(begun, 0);
            if (stat(nodes[in->nodeid], &found)) {
                answer(in->unique, errno, NULL, 0);
                break;
            }
            fill(&out.attr, in->nodeid, &found);
            answer(in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_OPEN: {
            struct fuse_open_out out = {0};
            int file = open(nodes[in->nodeid], O_RDONLY | O_CLOEXEC);
            count(OPENS, 1);
            wait_for(begun, 0);
            out.fh = file;
            answer(in->unique, file < 0 ? errno : 0, &out, sizeof out);
            break;
        }
        case FUSE_OPENDIR: {
            struct fuse_open_out out = {0};
            answer(in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_READ: read_file(in, body, buffer, begun); break;
        case FUSE_READDIR: list(in, body, buffer); break;
        case FUSE_RELEASE: close((int)((const struct fuse_release_in *)body)->fh); /* fall through */
        case FUSE_RELEASEDIR:
        case FUSE_FLUSH: answer(in->unique, 0, NULL, 0); break;
        case FUSE_STATFS: {
            struct fuse_statfs_out out = {.st = {.bsize = 4096, .frsize = 4096, .namelen = 255}};
            answer(in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_FORGET:
        case FUSE_BATCH_FORGET:
        case FUSE_INTERRUPT: break; /* have no answer */
        default: answer(in->unique, ENOSYS, NULL, 0);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 6) return fprintf(stderr, "slow_fs FOLDER MOUNT_POINT LATENCY_MS MBYTE_PER_S COUNTERS\n"), 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    nodes[1] = realpath(argv[1], NULL);
    latency = (int64_t)(atof(argv[3]) * 1e6);
    nanoseconds_per_byte = atof(argv[4]) > 0 ? 1e3 / atof(argv[4]) : 0;
    int file = open(argv[5], O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (!nodes[1] || file < 0 || ftruncate(file, COUNTERS * sizeof *counters)) return perror(argv[5]), 1;
    counters = mmap(NULL, COUNTERS * sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    char options[100];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,max_read=%d", device, MOST_READ);
    if (counters == MAP_FAILED || device < 0 || mount("slow", argv[2], "fuse.slow", MS_NOSUID | MS_NODEV | MS_RDONLY, options))
        return perror(argv[2]), 1;
    pthread_t thread;
    for (int number = 0; number < THREADS; number++)
        if (pthread_create(&thread, NULL, serve, NULL)) return perror("thread"), 1;
    puts("mounted");
    fflush(stdout);
    while (getchar() != EOF) {}
    umount2(argv[2], MNT_DETACH);
    return 0;
}
