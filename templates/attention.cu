Causal attention: a warp a query. Every lane scores one of 32 keys, then holds some of the result's dims; running
maximum and sum.
//: function
extern "C" __global__ void ${name}(${arguments}const double *s)
{
    enum { SEQ = ${seq}, DIM = ${dim}, PER_LANE = (DIM + 31) / 32 };
    ${kernel}
    const int lane = threadIdx.x % 32;
    const int64_t r = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (r >= ${rows}) return;
    ${row}
    const int k0 = ${first_key};
    ${T} top = -P_INF_${S}, sum = 0, result[PER_LANE];
    for (int i = 0; i < PER_LANE; i++) result[i] = 0;
    for (int j0 = k0; j0 <= q0; j0 += 32) {
        const int back = q0 - (j0 + lane);
        ${T} x = -P_INF_${S};
        if (${seen}) {
            x = 0;
            for (int d = 0; d < DIM; d++)
                x = p_fma_${S}(${q_load}(q[(int64_t)q0 * ${q_seq} + d * ${q_dim}]), ${k_load}(k[(int64_t)(j0 + lane) * ${k_seq} + d * ${k_dim}]), x);
            x *= ${scale};
        }
        const ${T} higher = p_max_${S}(top, p_warp_max_${S}(x)), shrink = p_exp_${S}(top - higher), p = p_exp_${S}(x - higher);
        top = higher;
        sum = sum * shrink + p_warp_sum_${S}(p);
        for (int i = 0; i < PER_LANE; i++) result[i] *= shrink;
        for (int j = 0; j < 32 && j0 + j <= q0; j++) {
            const ${T} pj = __shfl_sync(0xffffffffu, p, j);
            for (int i = 0; i < PER_LANE; i++) {
                const int d = lane + 32 * i;
                if (d < DIM) result[i] = p_fma_${S}(pj, ${v_load}(v[(int64_t)(j0 + j) * ${v_seq} + d * ${v_dim}]), result[i]);
            }
        }
    }
    for (int i = 0; i < PER_LANE; i++) {
        const int d = lane + 32 * i;
        if (d < DIM) o[(int64_t)q0 * ${o_seq} + d * ${o_dim}] = ${o_store}(result[i] / sum);
    }
    ${store_lse}
}
//: lse
if (lane == 0) lse[(int64_t)q0 * ${lse_seq}] = top + p_log_${S}(sum);
