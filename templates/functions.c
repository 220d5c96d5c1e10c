Scalar functions, one text for C and CUDA: P_FN is how a function is declared; p_fma, p_bits come from the prelude.

f32 functions are polynomials without branches, so that the vectorised loop and its rest, every compiler, vector width and
the GPU give the same bits. fma is written out; contraction is off. Largest errors in units in the last place (held by
tests/ops/test_math.c): exp 1.01, log 0.9, tanh 1.9, sigmoid 2.6, rsqrt 1.5; sin, cos, erf, pow go through double, 0.51.
NaN stays NaN; exp(-inf) = 0, exp(inf) = inf, log(0) = -inf, log of a negative number NaN. f64 functions are the library's.
//: functions
// ---- bf16: the upper half of a float, rounded to nearest even
P_FN float p_from_bf16(uint16_t h) { return p_bits_to_f32((uint32_t)h << 16); }
P_FN uint16_t p_to_bf16(float x)
{
    const uint32_t u = p_f32_to_bits(x);
    return (uint16_t)(x != x ? (u >> 16 | 0x40) : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}
P_FN float p_round_bf16(float x) { return p_from_bf16(p_to_bf16(x)); }

// ---- any type. max and min carry NaN.
#define P_ORDER(T, S)                                                                       \
    P_FN T p_max_##S(T a, T b) { return a > b ? a : a != a ? a : b; }                       \
    P_FN T p_min_##S(T a, T b) { return a < b ? a : a != a ? a : b; }                       \
    P_FN T p_sign_##S(T x) { return x > 0 ? 1 : x < 0 ? -1 : x; }
P_ORDER(float, f32)
P_ORDER(double, f64)
P_ORDER(int, i32)
P_FN float p_abs_f32(float x) { return p_bits_to_f32(p_f32_to_bits(x) & 0x7fffffffu); }
P_FN double p_abs_f64(double x) { return fabs(x); }
P_FN int p_abs_i32(int x) { return x < 0 ? -x : x; }
// Selects by bits. With ?: GCC moves the computation of an arm into a branch, which keeps a loop from being vectorised.
P_FN int p_where_i32(int c, int a, int b) { return (a & -c) | (b & ~-c); }
P_FN float p_where_f32(int c, float a, float b)
{
    const uint32_t m = -(uint32_t)c;
    return p_bits_to_f32((p_f32_to_bits(a) & m) | (p_f32_to_bits(b) & ~m));
}
P_FN double p_where_f64(int c, double a, double b)
{
    const uint64_t m = -(uint64_t)c;
    return p_bits_to_f64((p_f64_to_bits(a) & m) | (p_f64_to_bits(b) & ~m));
}

// ---- f32
P_FN float p_exp_f32(float x)
{
    x = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;  // beyond: 0 and inf
    const float t = p_fma_f32(x, 1.44269504f, 12582912.0f);  // round(x / ln 2) in the low bits
    const int32_t k = (int32_t)(p_f32_to_bits(t) - 0x4b400000u);
    const float n = t - 12582912.0f;
    float r = p_fma_f32(n, -0.693145752f, x);
    r = p_fma_f32(n, -1.42860677e-6f, r);
    float p = 1.98756912e-4f;
    p = p_fma_f32(p, r, 1.39819994e-3f);
    p = p_fma_f32(p, r, 8.33345205e-3f);
    p = p_fma_f32(p, r, 4.16657962e-2f);
    p = p_fma_f32(p, r, 1.66666657e-1f);
    p = p_fma_f32(p, r, 0.5f);
    p = p_fma_f32(p, r * r, r) + 1.0f;
    const int32_t half = k >> 1;  // 2^k in two steps, as k may lie outside of the exponent's range
    return p * p_bits_to_f32((uint32_t)(half + 127) << 23) * p_bits_to_f32((uint32_t)(k - half + 127) << 23);
}
P_FN float p_log_f32(float x)
{
    const float a = x < 1.17549435e-38f ? x * 8388608.0f : x;  // denormal
    const uint32_t u = p_f32_to_bits(a), e = (u - 0x3f2aaaabu) & 0xff800000u;
    const float shift = x < 1.17549435e-38f ? -23.0f : 0.0f;
    const float n = p_fma_f32((float)(int32_t)e, 1.19209290e-7f, shift);
    const float m = p_bits_to_f32(u - e) - 1.0f, s = m * m;  // m in [-1/3, 1/3]
    float p = -0.130310059f, q = 0.140869141f;
    p = p_fma_f32(p, s, -0.121483512f);
    q = p_fma_f32(q, s, 0.139814854f);
    p = p_fma_f32(p, s, -0.166846126f);
    q = p_fma_f32(q, s, 0.200120345f);
    p = p_fma_f32(p, s, -0.249996200f);
    p = p_fma_f32(q, m, p);
    p = p_fma_f32(p, m, 0.333331972f);
    p = p_fma_f32(p, m, -0.5f);
    p = p_fma_f32(p, s, m);
    p = p_fma_f32(n, 0.693147182f, p);
    return x > 0.0f && x < P_INF_f32 ? p : x == 0.0f ? -P_INF_f32 : x < 0.0f ? P_NAN_f32 : x;
}
P_FN float p_tanh_f32(float x)
{
    const float a = p_abs_f32(x), s = x * x;
    float p = 1.57394409e-2f;
    p = p_fma_f32(p, s, -5.23025580e-2f);
    p = p_fma_f32(p, s, 1.33152470e-1f);
    p = p_fma_f32(p, s, -3.33327681e-1f);
    const float near = p_fma_f32(p * s, x, x);
    const float far = 1.0f - 2.0f / (p_exp_f32(a + a) + 1.0f);
    return a < 0.6f ? near : x < 0.0f ? -far : far;
}
P_FN float p_sigmoid_f32(float x)
{
    const float e = p_exp_f32(-p_abs_f32(x));  // at most 1
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
P_FN float p_sqrt_f32(float x) { return sqrtf(x); }
P_FN float p_rsqrt_f32(float x) { return 1.0f / sqrtf(x); }
P_FN float p_floor_f32(float x) { return floorf(x); }
P_FN float p_sin_f32(float x) { return (float)sin((double)x); }
P_FN float p_cos_f32(float x) { return (float)cos((double)x); }
P_FN float p_erf_f32(float x) { return (float)erf((double)x); }
P_FN float p_pow_f32(float x, float y) { return (float)pow((double)x, (double)y); }

// ---- f64
P_FN double p_exp_f64(double x) { return exp(x); }
P_FN double p_log_f64(double x) { return log(x); }
P_FN double p_tanh_f64(double x) { return tanh(x); }
P_FN double p_sigmoid_f64(double x)
{
    const double e = exp(-p_abs_f64(x));
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}
P_FN double p_sqrt_f64(double x) { return sqrt(x); }
P_FN double p_rsqrt_f64(double x) { return 1.0 / sqrt(x); }
P_FN double p_floor_f64(double x) { return floor(x); }
P_FN double p_sin_f64(double x) { return sin(x); }
P_FN double p_cos_f64(double x) { return cos(x); }
P_FN double p_erf_f64(double x) { return erf(x); }
P_FN double p_pow_f64(double x, double y) { return pow(x, y); }

// ---- uniform in [0, 1), 24 bits: Philox4x32-10 with key (seed) and counter (position, step, which random)
P_FN uint32_t p_random_bits(double seed, double step, uint32_t id, int64_t position)
{
    const uint64_t key = (uint64_t)(int64_t)seed;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)position, c1 = (uint32_t)((uint64_t)position >> 32), c2 = (uint32_t)(int64_t)step, c3 = id;
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0 >> 8;
}
P_FN float p_random_f32(double seed, double step, uint32_t id, int64_t position)
{
    return (float)p_random_bits(seed, step, id, position) * 0x1p-24f;
}
P_FN double p_random_f64(double seed, double step, uint32_t id, int64_t position)
{
    return (double)p_random_bits(seed, step, id, position) * 0x1p-24;
}
