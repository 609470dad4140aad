/* Memory-mapped files may go away: one that is cut short, or storage that fails, is a SIGBUS where the memory is read.
 *
 * GUARDED(call) is the value of `call`, or GONE if that happened in it. `call` must hold nothing that would have to be
 * given back. What faults anywhere else ends the process as it always did. */
#ifndef SHARDIO_GUARD_H
#define SHARDIO_GUARD_H
#include <setjmp.h>
#include <stddef.h>

enum { GONE = -1 };

/* Where this thread goes on after a fault; NULL outside of GUARDED. */
extern __thread sigjmp_buf *shardio_escape __attribute__((tls_model("initial-exec")));
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
