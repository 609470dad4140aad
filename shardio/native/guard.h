/* Protection against lost memory-mapped files: reading memory whose file was cut short, or whose storage fails, raises
 * SIGBUS.
 *
 * GUARDED(call) is the value of `call`, or GONE if such a fault ends it. `call` must own no resource, since a jump
 * leaves it. A fault anywhere else ends the process as usual. */
#ifndef SHARDIO_GUARD_H
#define SHARDIO_GUARD_H
#include <setjmp.h>
#include <stddef.h>

enum { GONE = -1 };

#ifdef __ELF__ /* a signal handler must find it without a call that allocates */
#define AT_ONCE __attribute__((tls_model("initial-exec")))
#else
#define AT_ONCE
#endif

/* Where this thread continues after a fault; NULL outside GUARDED. */
extern __thread sigjmp_buf *shardio_escape AT_ONCE;
void shardio_catch(void);

#define GUARDED(call)                                                                                                  \
    ({                                                                                                                 \
        sigjmp_buf escape;                                                                                             \
        shardio_catch();                                                                                               \
        int64_t result = GONE;                                                                                         \
        if (!sigsetjmp(escape, 0)) {                                                                                   \
            shardio_escape = &escape;                                                                                  \
            result = (call);                                                                                           \
        } else                                                                                                         \
            result = GONE;                                                                                             \
        shardio_escape = NULL;                                                                                         \
        result;                                                                                                        \
    })
#endif
