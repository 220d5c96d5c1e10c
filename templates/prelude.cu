What generated CUDA may use; NVRTC has no headers. Compile with --fmad=false.
//: prelude
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define INT32_MAX 2147483647
#define INT32_MIN (-INT32_MAX - 1)
#define P_FN static __device__ __forceinline__
#define P_INF_f32 __int_as_float(0x7f800000)
#define P_NAN_f32 __int_as_float(0x7fc00000)
#define P_INF_f64 __longlong_as_double(0x7ff0000000000000LL)
#define P_NAN_f64 __longlong_as_double(0x7ff8000000000000LL)

P_FN float p_bits_to_f32(uint32_t u) { return __uint_as_float(u); }
P_FN uint32_t p_f32_to_bits(float f) { return __float_as_uint(f); }
P_FN double p_bits_to_f64(uint64_t u) { return __longlong_as_double((int64_t)u); }
P_FN uint64_t p_f64_to_bits(double f) { return (uint64_t)__double_as_longlong(f); }
P_FN float p_fma_f32(float a, float b, float c) { return __fmaf_rn(a, b, c); }
P_FN double p_fma_f64(double a, double b, double c) { return __fma_rn(a, b, c); }
${functions}

// ---- a warp's lanes, added in the tree of the C kernels; every lane gets the result
#define P_WARP(T, S)                                                                              \
    P_FN T p_warp_sum_##S(T x)                                                                    \
    {                                                                                             \
        for (int n = 16; n; n /= 2) x += __shfl_down_sync(0xffffffffu, x, n);                     \
        return __shfl_sync(0xffffffffu, x, 0);                                                    \
    }                                                                                             \
    P_FN T p_warp_max_##S(T x)                                                                    \
    {                                                                                             \
        for (int n = 16; n; n /= 2) x = p_max_##S(x, __shfl_down_sync(0xffffffffu, x, n));        \
        return __shfl_sync(0xffffffffu, x, 0);                                                    \
    }                                                                                             \
    P_FN T p_warp_min_##S(T x)                                                                    \
    {                                                                                             \
        for (int n = 16; n; n /= 2) x = p_min_##S(x, __shfl_down_sync(0xffffffffu, x, n));        \
        return __shfl_sync(0xffffffffu, x, 0);                                                    \
    }
P_WARP(float, f32)
P_WARP(double, f64)
P_WARP(int, i32)
