Types and functions that generated C may use.
//: prelude
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed"  // a loop with a call of the C library stays scalar
#endif

#define P_FN __attribute__((unused)) static inline
#define P_INF_f32 __builtin_inff()
#define P_INF_f64 __builtin_inf()
#define P_NAN_f32 __builtin_nanf("")
#define P_NAN_f64 __builtin_nan("")

P_FN float p_bits_to_f32(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
P_FN uint32_t p_f32_to_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
P_FN double p_bits_to_f64(uint64_t u) { double f; memcpy(&f, &u, 8); return f; }
P_FN uint64_t p_f64_to_bits(double f) { uint64_t u; memcpy(&u, &f, 8); return u; }
P_FN float p_fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
P_FN double p_fma_f64(double a, double b, double c) { return __builtin_fma(a, b, c); }
${functions}

// ---- lanes: the fixed tree
#define P_TREE(T, S)                                                                     \
    P_FN T p_tree_sum_##S(T *x)                                                 \
    {                                                                                    \
        for (int n = 16; n; n /= 2)                                                      \
            for (int l = 0; l < n; l++) x[l] += x[l + n];                                \
        return x[0];                                                                     \
    }                                                                                    \
    P_FN T p_tree_max_##S(T *x)                                                 \
    {                                                                                    \
        for (int n = 16; n; n /= 2)                                                      \
            for (int l = 0; l < n; l++) x[l] = p_max_##S(x[l], x[l + n]);                \
        return x[0];                                                                     \
    }                                                                                    \
    P_FN T p_tree_min_##S(T *x)                                                 \
    {                                                                                    \
        for (int n = 16; n; n /= 2)                                                      \
            for (int l = 0; l < n; l++) x[l] = p_min_##S(x[l], x[l + n]);                \
        return x[0];                                                                     \
    }
P_TREE(float, f32)
P_TREE(double, f64)
P_TREE(int, i32)
//: attention
// ---- attention. p_lanes_*: out[x][lane] (+)= sum over y, in order, of a[y][lane] * b[x][y], for 16 lanes; out_x, a_y,
// b_x, b_y are strides in elements. A tile of x keeps its sums in registers; every sum is a chain of fma whatever
// the tile, so the bits do not depend on it.
#define P_CALLED __attribute__((noinline, unused)) static
#define P_SAME(x) (x)
#define P_LANES_REST(NAME, T, S, B, LOAD)                                                                              \
    P_CALLED void NAME(T *out, int64_t out_x, int x, int nx, const T *a, int64_t a_y, int ny, const B *b, int64_t b_x,     \
                   int64_t b_y, int add)                                                                               \
    {                                                                                                                  \
        for (; x < nx; x++) {                                                                                          \
            T sum[16];                                                                                                 \
            for (int l = 0; l < 16; l++) sum[l] = add ? out[x * out_x + l] : 0;                                        \
            for (int y = 0; y < ny; y++) {                                                                             \
                const T f = LOAD(b[x * b_x + y * b_y]);                                                                \
                _Pragma("omp simd") for (int l = 0; l < 16; l++) sum[l] = p_fma_##S(a[y * a_y + l], f, sum[l]);        \
            }                                                                                                          \
            for (int l = 0; l < 16; l++) out[x * out_x + l] = sum[l];                                                  \
        }                                                                                                              \
    }
P_LANES_REST(p_lanes_rest_f32, float, f32, float, P_SAME)
P_LANES_REST(p_lanes_rest_bf16, float, f32, uint16_t, p_from_bf16)
P_LANES_REST(p_lanes_rest_f64, double, f64, double, P_SAME)

#if defined __AVX512F__ && defined __FMA__
typedef float p_vec __attribute__((vector_size(64)));
#define P_SET(x) ((p_vec){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x})
#define P_VFMA(a, b, c) ((p_vec)__builtin_ia32_vfmaddps512_mask(a, b, c, (unsigned short)-1, 4))
enum { P_TILE = 8, P_OTHER = 0 };  // eight sums of 16 lanes
#define P_X(i) (i)
#define P_LANE(i) 0
#elif defined __AVX2__ && defined __FMA__
typedef float p_vec __attribute__((vector_size(32)));
#define P_SET(x) ((p_vec){x, x, x, x, x, x, x, x})
#define P_VFMA(a, b, c) __builtin_ia32_vfmaddps256(a, b, c)
enum { P_TILE = 4, P_OTHER = 8 };  // four sums of two halves
#define P_X(i) ((i) / 2)
#define P_LANE(i) ((i) % 2 * 8)
#endif
#ifdef P_VFMA
typedef p_vec p_vec_at __attribute__((aligned(4), may_alias));
#define P_EACH(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7)
#define P_BEGIN(i) p_vec s##i = P_SET(0); if (add) s##i = *(const p_vec_at *)&out[P_X(i) * out_x + P_LANE(i)];
#define P_STEP(i) s##i = P_VFMA(P_LANE(i) ? u1 : u0, P_SET(f##i), s##i);
#define P_END(i) *(p_vec_at *)&out[P_X(i) * out_x + P_LANE(i)] = s##i;
#define P_FACTOR_f32(i) const float f##i = b[P_X(i) * b_x + y * b_y];
#define P_FACTOR_bf16(i) const float f##i = p_from_bf16(b[P_X(i) * b_x + y * b_y]);
// the empty asm keeps u0 and u1 in registers: GCC would rather load them again for every fma
#define P_TILE_OF(NAME, B, FACTOR)                                                                                     \
    P_FN void NAME(float *out, int64_t out_x, const float *a, int64_t a_y, int ny, const B *b, int64_t b_x,            \
                   int64_t b_y, int add)                                                                               \
    {                                                                                                                  \
        P_EACH(P_BEGIN)                                                                                                \
        for (int y = 0; y < ny; y++) {                                                                                 \
            p_vec u0 = *(const p_vec_at *)&a[y * a_y], u1 = *(const p_vec_at *)&a[y * a_y + P_OTHER];                  \
            __asm__("" : "+x"(u0), "+x"(u1));                                                                          \
            P_EACH(FACTOR)                                                                                             \
            P_EACH(P_STEP)                                                                                             \
        }                                                                                                              \
        P_EACH(P_END)                                                                                                  \
    }
P_TILE_OF(p_tile_f32, float, P_FACTOR_f32)
P_TILE_OF(p_tile_bf16, uint16_t, P_FACTOR_bf16)
#else
enum { P_TILE = 1 << 30 };  // none
#define p_tile_f32(...)
#define p_tile_bf16(...)
#endif
#define P_LANES(S, T, B, TILE)                                                                                         \
    P_CALLED void p_lanes_##S(T *out, int64_t out_x, int nx, const T *a, int64_t a_y, int ny, const B *b, int64_t b_x,     \
                          int64_t b_y, int add)                                                                        \
    {                                                                                                                  \
        int x = 0;                                                                                                     \
        for (; x + TILE <= nx; x += TILE) p_tile_##S(out + x * out_x, out_x, a, a_y, ny, b + x * b_x, b_x, b_y, add);  \
        p_lanes_rest_##S(out, out_x, x, nx, a, a_y, ny, b, b_x, b_y, add);                                             \
    }
P_LANES(f32, float, float, P_TILE)
P_LANES(bf16, float, uint16_t, P_TILE)
P_CALLED void p_lanes_f64(double *out, int64_t out_x, int nx, const double *a, int64_t a_y, int ny, const double *b,
                      int64_t b_x, int64_t b_y, int add)
{
    p_lanes_rest_f64(out, out_x, 0, nx, a, a_y, ny, b, b_x, b_y, add);
}
