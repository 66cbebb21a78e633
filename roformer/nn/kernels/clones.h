#pragma once

// A kernel is compiled for the plain, the AVX2 and the AVX-512 processor; the loader takes the one that fits.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define ROFORMER_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define ROFORMER_CLONES
#endif

// A part of a kernel: inlined, so that it is compiled for the kernel's processor.
#define ROFORMER_INLINE inline __attribute__((always_inline))
