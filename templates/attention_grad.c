Gradient of attention. A row is one key/value head: all query heads that read it are done in order, 16 queries at a time
as lanes, so every sum has one order. Scores are made again from lse. With P the probabilities, g the adjoint of the
output and delta = sum(g * output): dS = P * (g v - delta) * scale; dv = P g, dk = dS q, dq = dS k.
//: function
void ${name}(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    ${arguments}
    ${kernel}
    enum { SEQ = ${seq}, DIM = ${dim}, WIDE = ${wide} };  // WIDE: DIM in whole lanes
    ${T} *sum_k = (${T} *)scratch, *sum_v = sum_k + SEQ * WIDE;         // [key][WIDE]
    ${T} *prob = sum_v + SEQ * WIDE, *ds = prob + SEQ * 16;             // [key][lane]
    ${T} *query = ds + SEQ * 16, *adjoint = query + DIM * 16;           // [d][lane]
    ${T} *query_row = adjoint + DIM * 16, *adjoint_row = query_row + 16 * WIDE;  // [lane][WIDE]
    ${T} *result = adjoint_row + 16 * WIDE;                             // [d][lane]
    for (int i = 0; i < 16 * WIDE; i++) query_row[i] = adjoint_row[i] = 0;
    for (int64_t r = lo; r < hi; r++) {
        ${row}
        for (int i = 0; i < SEQ * WIDE; i++) sum_k[i] = sum_v[i] = 0;
        for (int m = 0; m < ${members}; m++) {
            ${member}
            for (int q0 = 0; q0 < SEQ; q0 += 16) {
                const int count = SEQ - q0 < 16 ? SEQ - q0 : 16;   // queries q0 .. q0 + count - 1
                const int k0 = ${first_key}, keys = q0 + count - k0;  // keys k0 .. k0 + keys - 1
                ${T} delta[16], row_lse[16];
                for (int l = 0; l < 16; l++) {
                    const int64_t at = l < count ? q0 + l : q0;
                    row_lse[l] = lse[at * ${lse_seq}];
                    delta[l] = 0;
                    for (int d = 0; d < DIM; d++) {
                        const ${T} x = l < count ? ${q_load}(q[at * ${q_seq} + d * ${q_dim}]) : 0;
                        const ${T} y = l < count ? ${g_load}(g[at * ${g_seq} + d * ${g_dim}]) : 0;
                        query[d * 16 + l] = query_row[l * WIDE + d] = x;
                        adjoint[d * 16 + l] = adjoint_row[l * WIDE + d] = y;
                        delta[l] = p_fma_${S}(y, ${o_load}(o[at * ${o_seq} + d * ${o_dim}]), delta[l]);
                    }
                }
                p_lanes_${k_type}(prob, 16, keys, query, 16, DIM, k + (int64_t)k0 * ${k_seq}, ${k_seq}, ${k_dim}, 0);
                p_lanes_${v_type}(ds, 16, keys, adjoint, 16, DIM, v + (int64_t)k0 * ${v_seq}, ${v_seq}, ${v_dim}, 0);
                for (int j = 0; j < keys; j++) {
                    #pragma omp simd
                    for (int l = 0; l < 16; l++) {
                        const int back = q0 + l - (k0 + j), seen = (l < count) & ${seen};
                        const ${T} p = p_exp_${S}(prob[j * 16 + l] * ${scale} - row_lse[l]);
                        const ${T} x = p * (ds[j * 16 + l] - delta[l]) * ${scale};
                        prob[j * 16 + l] = p_where_${S}(seen, p, 0);
                        ds[j * 16 + l] = p_where_${S}(seen, x, 0);
                    }
                }
                for (int d = 0; d < WIDE; d += 16) {
                    p_lanes_${S}(sum_v + k0 * WIDE + d, WIDE, keys, adjoint_row + d, WIDE, 16, prob, 16, 1, 1);
                    p_lanes_${S}(sum_k + k0 * WIDE + d, WIDE, keys, query_row + d, WIDE, 16, ds, 16, 1, 1);
                }
                p_lanes_${k_type}(result, 16, DIM, ds, 16, keys, k + (int64_t)k0 * ${k_seq}, ${k_dim}, ${k_seq}, 0);
                for (int l = 0; l < count; l++)
                    for (int d = 0; d < DIM; d++) dq[(int64_t)(q0 + l) * ${dq_seq} + d * ${dq_dim}] = ${dq_store}(result[d * 16 + l]);
            }
        }
        for (int64_t j = 0; j < SEQ; j++)
            for (int d = 0; d < DIM; d++) {
                dk[j * ${dk_seq} + d * ${dk_dim}] = ${dk_store}(sum_k[j * WIDE + d]);
                dv[j * ${dv_seq} + d * ${dv_dim}] = ${dv_store}(sum_v[j * WIDE + d]);
            }
    }
}
