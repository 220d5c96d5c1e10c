Causal attention, 16 queries at a time as lanes: scores[key][lane], so that nothing is summed across lanes. Sums over
head_dim and over keys are chains of fma in order. lse = max + log(sum).
//: function
void ${name}(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    ${arguments}
    ${kernel}
    enum { SEQ = ${seq}, DIM = ${dim} };
    ${T} *query = (${T} *)scratch, *score = query + DIM * 16, *result = score + SEQ * 16;
    for (int64_t r = lo; r < hi; r++) {
        ${row}
        const int count = SEQ - q0 < 16 ? SEQ - q0 : 16;   // queries q0 .. q0 + count - 1
        const int k0 = ${first_key}, keys = q0 + count - k0;  // keys k0 .. k0 + keys - 1
        for (int d = 0; d < DIM; d++)
            for (int l = 0; l < 16; l++) query[d * 16 + l] = l < count ? ${q_load}(q[(int64_t)(q0 + l) * ${q_seq} + d * ${q_dim}]) : 0;
        p_lanes_${k_type}(score, 16, keys, query, 16, DIM, k + (int64_t)k0 * ${k_seq}, ${k_seq}, ${k_dim}, 0);
        ${T} top[16], sum[16];
        for (int l = 0; l < 16; l++) {
            top[l] = -P_INF_${S};
            sum[l] = 0;
        }
        for (int j = 0; j < keys; j++) {
            #pragma omp simd
            for (int l = 0; l < 16; l++) {
                const int back = q0 + l - (k0 + j);
                const ${T} x = p_where_${S}(${seen}, score[j * 16 + l] * ${scale}, -P_INF_${S});
                score[j * 16 + l] = x;
                top[l] = p_max_${S}(top[l], x);
            }
        }
        for (int j = 0; j < keys; j++) {
            #pragma omp simd
            for (int l = 0; l < 16; l++) {
                const ${T} p = p_exp_${S}(score[j * 16 + l] - top[l]);
                score[j * 16 + l] = p;
                sum[l] += p;
            }
        }
        p_lanes_${v_type}(result, 16, DIM, score, 16, keys, v + (int64_t)k0 * ${v_seq}, ${v_dim}, ${v_seq}, 0);
        for (int l = 0; l < count; l++)
            for (int d = 0; d < DIM; d++) o[(int64_t)(q0 + l) * ${o_seq} + d * ${o_dim}] = ${o_store}(result[d * 16 + l] / sum[l]);
        ${store_lse}
    }
}
//: lse
for (int l = 0; l < count; l++) lse[(int64_t)(q0 + l) * ${lse_seq}] = top[l] + p_log_${S}(sum[l]);
