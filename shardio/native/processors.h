/* One function each for AVX-512, AVX2 and any processor, chosen while the program loads. It uses no fused multiply-add:
 * every processor gives the same bytes. */
#ifndef SHARDIO_PROCESSORS_H
#define SHARDIO_PROCESSORS_H

#ifdef __linux__
#include <features.h>
#endif
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__) && !defined(SHARDIO_ONE_PROCESSOR)
#if __GNUC__ >= 12
#define EVERY_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define EVERY_PROCESSOR __attribute__((target_clones("avx2", "default")))
#endif
#else
#define EVERY_PROCESSOR
#endif

#endif
