Gradient of attention: the first blocks make dq, a warp a query; the others dk and dv, a warp a key, through all
queries that see it, in order. See attention_grad.c.
//: function
extern "C" __global__ void ${name}(${arguments}const double *s)
{
    enum { SEQ = ${seq}, DIM = ${dim}, PER_LANE = (DIM + 31) / 32 };
    ${kernel}
    const int lane = threadIdx.x % 32;
    if (blockIdx.x < ${query_blocks}) {
        const int64_t r = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
        if (r >= ${query_rows}) return;
        ${query_row}
        const int k0 = ${first_key};
        ${T} delta = 0, result[PER_LANE];
        for (int i = 0; i < PER_LANE; i++) result[i] = 0;
        for (int d = 0; d < DIM; d++)
            delta = p_fma_${S}(${g_load}(g[(int64_t)q0 * ${g_seq} + d * ${g_dim}]), ${o_load}(o[(int64_t)q0 * ${o_seq} + d * ${o_dim}]), delta);
        for (int j0 = k0; j0 <= q0; j0 += 32) {
            const int back = q0 - (j0 + lane);
            ${T} ds = 0;
            if (${seen}) {
                ${T} x = 0, y = 0;
                for (int d = 0; d < DIM; d++) {
                    x = p_fma_${S}(${q_load}(q[(int64_t)q0 * ${q_seq} + d * ${q_dim}]), ${k_load}(k[(int64_t)(j0 + lane) * ${k_seq} + d * ${k_dim}]), x);
                    y = p_fma_${S}(${g_load}(g[(int64_t)q0 * ${g_seq} + d * ${g_dim}]), ${v_load}(v[(int64_t)(j0 + lane) * ${v_seq} + d * ${v_dim}]), y);
                }
                ds = p_exp_${S}(x * ${scale} - lse[(int64_t)q0 * ${lse_seq}]) * (y - delta) * ${scale};
            }
            for (int j = 0; j < 32 && j0 + j <= q0; j++) {
                const ${T} f = __shfl_sync(0xffffffffu, ds, j);
                for (int i = 0; i < PER_LANE; i++) {
                    const int d = lane + 32 * i;
                    if (d < DIM) result[i] = p_fma_${S}(f, ${k_load}(k[(int64_t)(j0 + j) * ${k_seq} + d * ${k_dim}]), result[i]);
                }
            }
        }
        for (int i = 0; i < PER_LANE; i++) {
            const int d = lane + 32 * i;
            if (d < DIM) dq[(int64_t)q0 * ${dq_seq} + d * ${dq_dim}] = ${dq_store}(result[i]);
        }
    } else {
        const int64_t r = ((int64_t)(blockIdx.x - ${query_blocks}) * blockDim.x + threadIdx.x) / 32;
        if (r >= ${key_rows}) return;
        ${key_row}
        ${T} sum_k[PER_LANE], sum_v[PER_LANE];
        for (int i = 0; i < PER_LANE; i++) sum_k[i] = sum_v[i] = 0;
        for (int m = 0; m < ${members}; m++) {
            ${member}
            for (int i0 = j0; i0 < SEQ; i0 += 32) {
                const int64_t at = i0 + lane;
                const int back = i0 + lane - j0;
                ${T} p = 0, ds = 0;
                if (at < SEQ && ${seen}) {
                    ${T} x = 0, y = 0, delta = 0;
                    for (int d = 0; d < DIM; d++) {
                        const ${T} gd = ${g_load}(g[at * ${g_seq} + d * ${g_dim}]);
                        x = p_fma_${S}(${q_load}(q[at * ${q_seq} + d * ${q_dim}]), ${k_load}(k[(int64_t)j0 * ${k_seq} + d * ${k_dim}]), x);
                        y = p_fma_${S}(gd, ${v_load}(v[(int64_t)j0 * ${v_seq} + d * ${v_dim}]), y);
                        delta = p_fma_${S}(gd, ${o_load}(o[at * ${o_seq} + d * ${o_dim}]), delta);
                    }
                    p = p_exp_${S}(x * ${scale} - lse[at * ${lse_seq}]);
                    ds = p * (y - delta) * ${scale};
                }
                for (int j = 0; j < 32 && i0 + j < SEQ; j++) {
                    const ${T} pj = __shfl_sync(0xffffffffu, p, j), dsj = __shfl_sync(0xffffffffu, ds, j);
                    for (int i = 0; i < PER_LANE; i++) {
                        const int d = lane + 32 * i;
                        if (d >= DIM) continue;
                        sum_v[i] = p_fma_${S}(pj, ${g_load}(g[(int64_t)(i0 + j) * ${g_seq} + d * ${g_dim}]), sum_v[i]);
                        sum_k[i] = p_fma_${S}(dsj, ${q_load}(q[(int64_t)(i0 + j) * ${q_seq} + d * ${q_dim}]), sum_k[i]);
                    }
                }
            }
        }
        for (int i = 0; i < PER_LANE; i++) {
            const int d = lane + 32 * i;
            if (d >= DIM) continue;
            dk[(int64_t)j0 * ${dk_seq} + d * ${dk_dim}] = ${dk_store}(sum_k[i]);
            dv[(int64_t)j0 * ${dv_seq} + d * ${dv_dim}] = ${dv_store}(sum_v[i]);
        }
    }
}
