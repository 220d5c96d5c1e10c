
// adamw nn.lua:126
// a0 f32 [vocab 11, hidden 6] read and written
// a1 f32 [] read
// a2 f32 [vocab 11, hidden 6] read
// a3 f32 [] read
// a4 f32 [vocab 11, hidden 6] read and written
// a5 f32 [vocab 11, hidden 6] read and written
void adamw_19(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    float *a0 = (float *)b[0];
    const float *a1 = (const float *)b[1];
    const float *a2 = (const float *)b[2];
    const float *a3 = (const float *)b[3];
    float *a4 = (float *)b[4];
    float *a5 = (float *)b[5];
    const double scalar_0 = s[10];
    const float f32_1 = (float)scalar_0;
    const double sub_4 = 1.0 - scalar_0;
    const float f32_5 = (float)sub_4;
    const double scalar_6 = s[13];
    const int lt_7 = 0.0 < scalar_6;
    const float f32_8 = (float)scalar_6;
    const float x_9 = a1[0];
    const float add_10 = x_9 + 1e-06f;
    const float div_11 = f32_8 / add_10;
    const float min_12 = p_min_f32(1.0f, div_11);
    const float where_13 = p_where_f32(lt_7, min_12, 1.0f);
    const float x_15 = a3[0];
    const double scalar_20 = s[11];
    const float f32_21 = (float)scalar_20;
    const double sub_24 = 1.0 - scalar_20;
    const float f32_25 = (float)sub_24;
    const double scalar_30 = s[9];
    const float f32_31 = (float)scalar_30;
    const double scalar_32 = s[3];
    const double pow_33 = p_pow_f64(scalar_0, scalar_32);
    const double sub_34 = 1.0 - pow_33;
    const float f32_35 = (float)sub_34;
    const double pow_37 = p_pow_f64(scalar_20, scalar_32);
    const double sub_38 = 1.0 - pow_37;
    const float f32_39 = (float)sub_38;
    const double scalar_42 = s[12];
    const float f32_43 = (float)scalar_42;
    const double scalar_46 = s[14];
    const float f32_47 = (float)scalar_46;
    for (int64_t r = lo; r < hi; r++) {
        #pragma omp simd
        for (int i = 0; i < 66; i++) {
            const float x_2 = a0[i];
            const float mul_3 = f32_1 * x_2;
            const float x_14 = a2[i];
            const float mul_16 = x_14 * x_15;
            const float mul_17 = where_13 * mul_16;
            const float mul_18 = f32_5 * mul_17;
            const float add_19 = mul_3 + mul_18;
            const float x_22 = a4[i];
            const float mul_23 = f32_21 * x_22;
            const float mul_26 = mul_17 * mul_17;
            const float mul_27 = f32_25 * mul_26;
            const float add_28 = mul_23 + mul_27;
            const float x_29 = a5[i];
            const float div_36 = add_19 / f32_35;
            const float div_40 = add_28 / f32_39;
            const float sqrt_41 = p_sqrt_f32(div_40);
            const float add_44 = sqrt_41 + f32_43;
            const float div_45 = div_36 / add_44;
            const float mul_48 = f32_47 * x_29;
            const float add_49 = div_45 + mul_48;
            const float mul_50 = f32_31 * add_49;
            const float sub_51 = x_29 - mul_50;
            a0[i] = add_19;
            a4[i] = add_28;
            a5[i] = sub_51;
        }
    }
}

// adamw nn.lua:126
// a0 f32 [hidden 6] read and written
// a1 f32 [] read
// a2 f32 [hidden 6] read
// a3 f32 [] read
// a4 f32 [hidden 6] read and written
// a5 f32 [hidden 6] read and written
void adamw_20(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    float *a0 = (float *)b[0];
    const float *a1 = (const float *)b[1];
    const float *a2 = (const float *)b[2];
    const float *a3 = (const float *)b[3];
    float *a4 = (float *)b[4];
    float *a5 = (float *)b[5];
    const double scalar_0 = s[10];
    const float f32_1 = (float)scalar_0;
    const double sub_4 = 1.0 - scalar_0;
    const float f32_5 = (float)sub_4;
    const double scalar_6 = s[13];
    const int lt_7 = 0.0 < scalar_6;
    const float f32_8 = (float)scalar_6;
    const float x_9 = a1[0];
    const float add_10 = x_9 + 1e-06f;
    const float div_11 = f32_8 / add_10;
    const float min_12 = p_min_f32(1.0f, div_11);
    const float where_13 = p_where_f32(lt_7, min_12, 1.0f);
    const float x_15 = a3[0];
    const double scalar_20 = s[11];
    const float f32_21 = (float)scalar_20;
    const double sub_24 = 1.0 - scalar_20;
    const float f32_25 = (float)sub_24;
    const double scalar_30 = s[9];
    const float f32_31 = (float)scalar_30;
    const double scalar_32 = s[3];
    const double pow_33 = p_pow_f64(scalar_0, scalar_32);
    const double sub_34 = 1.0 - pow_33;
    const float f32_35 = (float)sub_34;
    const double pow_37 = p_pow_f64(scalar_20, scalar_32);
    const double sub_38 = 1.0 - pow_37;
    const float f32_39 = (float)sub_38;
    const double scalar_42 = s[12];
    const float f32_43 = (float)scalar_42;
    const double scalar_46 = s[15];
    const float f32_47 = (float)scalar_46;
    for (int64_t r = lo; r < hi; r++) {
        #pragma omp simd
        for (int i = 0; i < 6; i++) {
            const float x_2 = a0[i];
            const float mul_3 = f32_1 * x_2;
            const float x_14 = a2[i];
            const float mul_16 = x_14 * x_15;
            const float mul_17 = where_13 * mul_16;
            const float mul_18 = f32_5 * mul_17;
            const float add_19 = mul_3 + mul_18;
            const float x_22 = a4[i];
            const float mul_23 = f32_21 * x_22;
            const float mul_26 = mul_17 * mul_17;
            const float mul_27 = f32_25 * mul_26;
            const float add_28 = mul_23 + mul_27;
            const float x_29 = a5[i];
            const float div_36 = add_19 / f32_35;
            const float div_40 = add_28 / f32_39;
            const float sqrt_41 = p_sqrt_f32(div_40);
            const float add_44 = sqrt_41 + f32_43;
            const float div_45 = div_36 / add_44;
            const float mul_48 = f32_47 * x_29;
            const float add_49 = div_45 + mul_48;
            const float mul_50 = f32_31 * add_49;
            const float sub_51 = x_29 - mul_50;
            a0[i] = add_19;
            a4[i] = add_28;
            a5[i] = sub_51;
        }
    }
}

// adamw nn.lua:126
// a0 f32 [ffn 8, hidden 6] read and written
// a1 f32 [] read
// a2 f32 [ffn 8, hidden 6] read
// a3 f32 [] read
// a4 f32 [ffn 8, hidden 6] read and written
// a5 f32 [ffn 8, hidden 6] read and written
void adamw_21(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    float *a0 = (float *)b[0];
    const float *a1 = (const float *)b[1];
    const float *a2 = (const float *)b[2];
    const float *a3 = (const float *)b[3];
    float *a4 = (float *)b[4];
    float *a5 = (float *)b[5];
    const double scalar_0 = s[10];
    const float f32_1 = (float)scalar_0;
    const double sub_4 = 1.0 - scalar_0;
    const float f32_5 = (float)sub_4;
    const double scalar_6 = s[13];
    const int lt_7 = 0.0 < scalar_6;
    const float f32_8 = (float)scalar_6;
    const float x_9 = a1[0];
    const float add_10 = x_9 + 1e-06f;
    const float div_11 = f32_8 / add_10;
    const float min_12 = p_min_f32(1.0f, div_11);
    const float where_13 = p_where_f32(lt_7, min_12, 1.0f);
    const float x_15 = a3[0];
    const double scalar_20 = s[11];
    const float f32_21 = (float)scalar_20;
    const double sub_24 = 1.0 - scalar_20;
    const float f32_25 = (float)sub_24;
    const double scalar_30 = s[9];
    const float f32_31 = (float)scalar_30;
    const double scalar_32 = s[3];
    const double pow_33 = p_pow_f64(scalar_0, scalar_32);
    const double sub_34 = 1.0 - pow_33;
    const float f32_35 = (float)sub_34;
    const double pow_37 = p_pow_f64(scalar_20, scalar_32);
    const double sub_38 = 1.0 - pow_37;
    const float f32_39 = (float)sub_38;
    const double scalar_42 = s[12];
    const float f32_43 = (float)scalar_42;
    const double scalar_46 = s[14];
    const float f32_47 = (float)scalar_46;
    for (int64_t r = lo; r < hi; r++) {
        #pragma omp simd
        for (int i = 0; i < 48; i++) {
            const float x_2 = a0[i];
            const float mul_3 = f32_1 * x_2;
            const float x_14 = a2[i];
            const float mul_16 = x_14 * x_15;
            const float mul_17 = where_13 * mul_16;
            const float mul_18 = f32_5 * mul_17;
            const float add_19 = mul_3 + mul_18;
            const float x_22 = a4[i];
            const float mul_23 = f32_21 * x_22;
            const float mul_26 = mul_17 * mul_17;
            const float mul_27 = f32_25 * mul_26;
            const float add_28 = mul_23 + mul_27;
            const float x_29 = a5[i];
            const float div_36 = add_19 / f32_35;
            const float div_40 = add_28 / f32_39;
            const float sqrt_41 = p_sqrt_f32(div_40);
            const float add_44 = sqrt_41 + f32_43;
            const float div_45 = div_36 / add_44;
            const float mul_48 = f32_47 * x_29;
            const float add_49 = div_45 + mul_48;
            const float mul_50 = f32_31 * add_49;
            const float sub_51 = x_29 - mul_50;
            a0[i] = add_19;
            a4[i] = add_28;
            a5[i] = sub_51;
        }
    }
}

// tiny.lua:10
// a0 f32 [batch 2, seq 5, hidden 6] read
// a1 f32 [batch 2, seq 5, hidden 6] read
// a2 f32 [batch 2, seq 5, hidden 6] written
void add_2(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const float *a0 = (const float *)b[0];
    const float *a1 = (const float *)b[1];
    float *a2 = (float *)b[2];
    for (int64_t r = lo; r < hi; r++) {
        #pragma omp simd
        for (int i = 0; i < 60; i++) {
            const float x_0 = a0[i];
            const float x_1 = a1[i];
            const float add_2 = x_0 + x_1;
            a2[i] = add_2;
        }
    }
}

// cross_entropy tiny.lua:16, tiny.lua:16
// a0 f32 [batch 2, seq 5, vocab 11] read
// a1 i32 [batch 2, seq 5] read
// a2 f32 [batch 2, seq 5, vocab 11] written
// a3 f32 [batch 2, seq 5] written
void cross_entropy_add_3(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const float *a0 = (const float *)b[0];
    const int32_t *a1 = (const int32_t *)b[1];
    float *a2 = (float *)b[2];
    float *a3 = (float *)b[3];
    float *kept_13 = (float *)((char *)scratch + 0);
    for (int64_t r = lo; r < hi; r++) {
        const float *a0_0 = a0 + r * 11;
        const int x_3 = a1[r];
        float lanes_2[32];
        float lanes_6[32];
        for (int l = 0; l < 32; l++) {
            lanes_2[l] = -P_INF_f32;
            lanes_6[l] = 0;
        }
        #pragma omp simd
        for (int l = 0; l < 11; l++) {
            const int i = l;
            const float x_1 = a0_0[i];
            const int eq_4 = i == x_3;
            const float where_5 = p_where_f32(eq_4, x_1, 0.0f);
            lanes_2[l] = p_max_f32(lanes_2[l], x_1);
            lanes_6[l] += where_5;
        }
        const float max_7 = p_tree_max_f32(lanes_2);
        const float sum_8 = p_tree_sum_f32(lanes_6);
        float lanes_12[32];
        for (int l = 0; l < 32; l++) {
            lanes_12[l] = 0;
        }
        #pragma omp simd
        for (int l = 0; l < 11; l++) {
            const int i = l;
            const float x_9 = a0_0[i];
            const float sub_10 = x_9 - max_7;
            const float exp_11 = p_exp_f32(sub_10);
            lanes_12[l] += exp_11;
            kept_13[i] = exp_11;
        }
        const float sum_14 = p_tree_sum_f32(lanes_12);
        const int eq_16 = x_3 == (-100);
        const float where_17 = p_where_f32(eq_16, 0.0f, (-1.0f));
        const float div_19 = 1.0f / sum_14;
        float *a2_24 = a2 + r * 11;
        #pragma omp simd
        for (int i = 0; i < 11; i++) {
            const int eq_15 = i == x_3;
            const float where_18 = p_where_f32(eq_15, where_17, 0.0f);
            const float exp_20 = kept_13[i];
            const float mul_21 = div_19 * exp_20;
            const float where_22 = p_where_f32(eq_16, 0.0f, mul_21);
            const float add_23 = where_18 + where_22;
            a2_24[i] = add_23;
        }
        const float log_25 = p_log_f32(sum_14);
        const float add_26 = log_25 + max_7;
        const float sub_27 = add_26 - sum_8;
        const float where_28 = p_where_f32(eq_16, 0.0f, sub_27);
        a3[r] = where_28;
    }
}

// tiny.lua:16
// a0 i32 [batch 2, seq 5] read
// a1 f64 [batch 2] written
void d_cast_reduce_10(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const int32_t *a0 = (const int32_t *)b[0];
    double *a1 = (double *)b[1];
    for (int64_t r = lo; r < hi; r++) {
        const int32_t *a0_0 = a0 + r * 5;
        double lanes_4[32];
        for (int l = 0; l < 32; l++) {
            lanes_4[l] = 0;
        }
        #pragma omp simd
        for (int l = 0; l < 5; l++) {
            const int i = l;
            const int x_1 = a0_0[i];
            const int ne_2 = x_1 != (-100);
            const double f64_3 = (double)ne_2;
            lanes_4[l] += f64_3;
        }
        const double sum_5 = p_tree_sum_f64(lanes_4);
        a1[r] = sum_5;
    }
}

// tiny.lua:16
// a0 f32 [batch 2, seq 5] read
// a1 f64 [batch 2] written
void d_reduce_4(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const float *a0 = (const float *)b[0];
    double *a1 = (double *)b[1];
    for (int64_t r = lo; r < hi; r++) {
        const float *a0_0 = a0 + r * 5;
        double lanes_3[32];
        for (int l = 0; l < 32; l++) {
            lanes_3[l] = 0;
        }
        #pragma omp simd
        for (int l = 0; l < 5; l++) {
            const int i = l;
            const float x_1 = a0_0[i];
            const double f64_2 = (double)x_1;
            lanes_3[l] += f64_2;
        }
        const double sum_4 = p_tree_sum_f64(lanes_3);
        a1[r] = sum_4;
    }
}

// tiny.lua:16
// a0 f64 [batch 2] read
// a1 f64 [] read and written
void d_reduce_accumulate_5(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const double *a0 = (const double *)b[0];
    double *a1 = (double *)b[1];
    const int first = s[0] != 0;  // micro-batch of the step
    for (int64_t r = lo; r < hi; r++) {
        double lanes_1[32];
        for (int l = 0; l < 32; l++) {
            lanes_1[l] = 0;
        }
        #pragma omp simd
        for (int l = 0; l < 2; l++) {
            const int i = l;
            const double x_0 = a0[i];
            lanes_1[l] += x_0;
        }
        const double sum_2 = p_tree_sum_f64(lanes_1);
        a1[0] = p_where_f64(first, sum_2, a1[0] + sum_2);
    }
}

// rmsnorm tiny.lua:9
// a0 f32 [batch 2, seq 5, hidden 6] read
// a1 f32 [batch 2, seq 5, hidden 6] read
// a2 f32 [batch 2, seq 5] read
// a3 f32 [hidden 6] read and written
void d_rmsnorm_8(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const float *a0 = (const float *)b[0];
    const float *a1 = (const float *)b[1];
    const float *a2 = (const float *)b[2];
    float *a3 = (float *)b[3];
    const int first = s[0] != 0;  // micro-batch of the step
    for (int64_t r = lo; r < hi; r++) {
        const int c0 = (int)(0) * 6;
        float sum_0[6], block_1[6];
        for (int l = 0; l < 6; l++) {
            sum_0[l] = 0;
        }
        for (int k0 = 0; k0 < 10; k0 += 64) {
            const int k1 = k0 + 64 < 10 ? k0 + 64 : 10;
            for (int l = 0; l < 6; l++) {
                block_1[l] = 0;
            }
            for (int k = k0; k < k1; k++) {
                const float *a0_2 = a0 + k * 6;
                const float *a1_4 = a1 + k * 6;
                const float x_6 = a2[k];
                #pragma omp simd
                for (int l = 0; l < 6; l++) {
                    const int c = c0 + l;
                    const float x_3 = a0_2[c];
                    const float x_5 = a1_4[c];
                    const float mul_7 = x_5 * x_6;
                    const float mul_8 = x_3 * mul_7;
                    block_1[l] += mul_8;
                }
            }
            #pragma omp simd
            for (int l = 0; l < 6; l++) {
                sum_0[l] += block_1[l];
            }
        }
        #pragma omp simd
        for (int l = 0; l < 6; l++) {
            const int c = c0 + l;
            a3[c] = p_where_f32(first, sum_0[l], a3[c] + sum_0[l]);
        }
    }
}

// rmsnorm tiny.lua:9, tiny.lua:15
// a0 f32 [batch 2, seq 5, hidden 6] read
// a1 f32 [hidden 6] read
// a2 f32 [batch 2, seq 5, hidden 6] read
// a3 f32 [batch 2, seq 5] read
// a4 f32 [batch 2, seq 5, hidden 6] written
// a5 f32 [batch 2, seq 5, hidden 6] read
// a6 f32 [batch 2, seq 5, hidden 6] written
void d_rmsnorm_add_7(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const float *a0 = (const float *)b[0];
    const float *a1 = (const float *)b[1];
    const float *a2 = (const float *)b[2];
    const float *a3 = (const float *)b[3];
    float *a4 = (float *)b[4];
    const float *a5 = (const float *)b[5];
    float *a6 = (float *)b[6];
    for (int64_t r = lo; r < hi; r++) {
        const float *a0_0 = a0 + r * 6;
        const float *a2_4 = a2 + r * 6;
        const float x_8 = a3[r];
        float *a4_11 = a4 + r * 6;
        float lanes_7[32];
        for (int l = 0; l < 32; l++) {
            lanes_7[l] = 0;
        }
        #pragma omp simd
        for (int l = 0; l < 6; l++) {
            const int i = l;
            const float x_1 = a0_0[i];
            const float x_2 = a1[i];
            const float mul_3 = x_1 * x_2;
            const float x_5 = a2_4[i];
            const float mul_6 = mul_3 * x_5;
            const float mul_9 = x_5 * x_8;
            const float mul_10 = mul_9 * x_2;
            lanes_7[l] += mul_6;
            a4_11[i] = mul_10;
        }
        const float sum_12 = p_tree_sum_f32(lanes_7);
        const float *a5_13 = a5 + r * 6;
        const float mul_20 = sum_12 * (-0.5f);
        const float mul_21 = x_8 * x_8;
        const float mul_22 = x_8 * mul_21;
        const float mul_23 = mul_20 * mul_22;
        const float div_24 = mul_23 / 6.0f;
        float *a6_29 = a6 + r * 6;
        #pragma omp simd
        for (int i = 0; i < 6; i++) {
            const float x_14 = a5_13[i];
            const float x_15 = a0_0[i];
            const float x_16 = a1[i];
            const float mul_17 = x_15 * x_16;
            const float mul_18 = mul_17 * x_8;
            const float add_19 = x_14 + mul_18;
            const float x_25 = a2_4[i];
            const float mul_26 = div_24 * x_25;
            const float add_27 = add_19 + mul_26;
            const float add_28 = add_27 + mul_26;
            a6_29[i] = add_28;
        }
    }
}

// tiny.lua:15
// a0 i32 [batch 2, seq 5] read
// a1 f32 [batch 2, seq 5, hidden 6] read
// a2 f32 [vocab 11, hidden 6] read and written
void d_scatter_add_accumulate_9(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const int32_t *a0 = (const int32_t *)b[0];
    const float *a1 = (const float *)b[1];
    float *a2 = (float *)b[2];
    for (int64_t r = lo; r < hi; r++) {
        const int c0 = (int)(0) * 6;
        for (int t = 0; t < 10; t++) {
            const int x_0 = a0[t];
            const int inside_1 = (uint32_t)(x_0) < 11u;
            const float *a1_2 = a1 + t * 6;
            float *a2_4 = a2 + x_0 * 6;
            if (inside_1) {
                #pragma omp simd
                for (int l = 0; l < 6; l++) {
                    const int c = c0 + l;
                    const float x_3 = a1_2[c];
                    a2_4[c] += x_3;
                }
            }
        }
    }
}

// silu tiny.lua:10, tiny.lua:10
// a0 f32 [batch 2, seq 5, ffn 8] read
// a1 f32 [batch 2, seq 5, ffn 8] written
// a2 f32 [batch 2, seq 5, ffn 8] read
// a3 f32 [batch 2, seq 5, ffn 8] written
void d_silu_add_6(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const float *a0 = (const float *)b[0];
    float *a1 = (float *)b[1];
    const float *a2 = (const float *)b[2];
    float *a3 = (float *)b[3];
    for (int64_t r = lo; r < hi; r++) {
        #pragma omp simd
        for (int i = 0; i < 80; i++) {
            const float x_0 = a0[i];
            const float sigmoid_1 = p_sigmoid_f32(x_0);
            const float mul_2 = x_0 * sigmoid_1;
            const float x_3 = a2[i];
            const float mul_4 = x_3 * sigmoid_1;
            const float mul_5 = x_3 * x_0;
            const float sub_6 = 1.0f - sigmoid_1;
            const float mul_7 = sigmoid_1 * sub_6;
            const float mul_8 = mul_5 * mul_7;
            const float add_9 = mul_4 + mul_8;
            a1[i] = mul_2;
            a3[i] = add_9;
        }
    }
}

// tiny.lua:15, rmsnorm tiny.lua:9
// a0 i32 [batch 2, seq 5] read
// a1 f32 [vocab 11, hidden 6] read
// a2 f32 [batch 2, seq 5, hidden 6] read and written
// a3 f32 [hidden 6] read
// a4 f32 [batch 2, seq 5, hidden 6] written
// a5 f32 [batch 2, seq 5] written
void gather_rmsnorm_0(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const int32_t *a0 = (const int32_t *)b[0];
    const float *a1 = (const float *)b[1];
    float *a2 = (float *)b[2];
    const float *a3 = (const float *)b[3];
    float *a4 = (float *)b[4];
    float *a5 = (float *)b[5];
    for (int64_t r = lo; r < hi; r++) {
        const int x_0 = a0[r];
        const int inside_1 = (uint32_t)(x_0) < 11u;
        const float *a1_2 = inside_1 ? a1 + x_0 * 6 : a1;
        float *a2_7 = a2 + r * 6;
        float lanes_6[32];
        for (int l = 0; l < 32; l++) {
            lanes_6[l] = 0;
        }
        #pragma omp simd
        for (int l = 0; l < 6; l++) {
            const int i = l;
            const float x_3 = a1_2[i];
            const float shifted_4 = p_where_f32(inside_1, x_3, 0);
            const float mul_5 = shifted_4 * shifted_4;
            lanes_6[l] += mul_5;
            a2_7[i] = shifted_4;
        }
        const float sum_8 = p_tree_sum_f32(lanes_6);
        const float *a2_9 = a2 + r * 6;
        const float div_11 = sum_8 / 6.0f;
        const float add_12 = div_11 + 1e-06f;
        const float rsqrt_13 = p_rsqrt_f32(add_12);
        float *a4_17 = a4 + r * 6;
        #pragma omp simd
        for (int i = 0; i < 6; i++) {
            const float x_10 = a2_9[i];
            const float mul_14 = x_10 * rsqrt_13;
            const float x_15 = a3[i];
            const float mul_16 = mul_14 * x_15;
            a4_17[i] = mul_16;
        }
        a5[r] = rsqrt_13;
    }
}

// nn.lua:122
// a0 f64 [] read
// a1 f64 [] read
// a2 f64 [] written
// a3 f32 [] written
void max_div_cast_11(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const double *a0 = (const double *)b[0];
    const double *a1 = (const double *)b[1];
    double *a2 = (double *)b[2];
    float *a3 = (float *)b[3];
    const double x_0 = a0[0];
    const double x_1 = a1[0];
    const double max_2 = p_max_f64(x_1, 1.0);
    const double div_3 = x_0 / max_2;
    const double div_4 = 1.0 / max_2;
    const float f32_5 = (float)div_4;
    for (int64_t r = lo; r < hi; r++) {
        a2[0] = div_3;
        a3[0] = f32_5;
    }
}

// nn.lua:122, sum_of_squares nn.lua:122
// a0 f32 [vocab 11, hidden 6] read
// a1 f32 [] read
// a2 f64 [vocab 11] written
void mul_sum_of_squares_12(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const float *a0 = (const float *)b[0];
    const float *a1 = (const float *)b[1];
    double *a2 = (double *)b[2];
    const float x_2 = a1[0];
    for (int64_t r = lo; r < hi; r++) {
        const float *a0_0 = a0 + r * 6;
        double lanes_6[32];
        for (int l = 0; l < 32; l++) {
            lanes_6[l] = 0;
        }
        #pragma omp simd
        for (int l = 0; l < 6; l++) {
            const int i = l;
            const float x_1 = a0_0[i];
            const float mul_3 = x_1 * x_2;
            const float mul_4 = mul_3 * mul_3;
            const double f64_5 = (double)mul_4;
            lanes_6[l] += f64_5;
        }
        const double sum_7 = p_tree_sum_f64(lanes_6);
        a2[r] = sum_7;
    }
}

// nn.lua:122, sum_of_squares nn.lua:122
// a0 f32 [ffn 8, hidden 6] read
// a1 f32 [] read
// a2 f64 [ffn 8] written
void mul_sum_of_squares_15(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const float *a0 = (const float *)b[0];
    const float *a1 = (const float *)b[1];
    double *a2 = (double *)b[2];
    const float x_2 = a1[0];
    for (int64_t r = lo; r < hi; r++) {
        const float *a0_0 = a0 + r * 6;
        double lanes_6[32];
        for (int l = 0; l < 32; l++) {
            lanes_6[l] = 0;
        }
        #pragma omp simd
        for (int l = 0; l < 6; l++) {
            const int i = l;
            const float x_1 = a0_0[i];
            const float mul_3 = x_1 * x_2;
            const float mul_4 = mul_3 * mul_3;
            const double f64_5 = (double)mul_4;
            lanes_6[l] += f64_5;
        }
        const double sum_7 = p_tree_sum_f64(lanes_6);
        a2[r] = sum_7;
    }
}

// nn.lua:122, sum_of_squares nn.lua:122
// a0 f32 [hidden 6, ffn 8] read
// a1 f32 [] read
// a2 f64 [hidden 6] written
void mul_sum_of_squares_17(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const float *a0 = (const float *)b[0];
    const float *a1 = (const float *)b[1];
    double *a2 = (double *)b[2];
    const float x_2 = a1[0];
    for (int64_t r = lo; r < hi; r++) {
        const float *a0_0 = a0 + r * 8;
        double lanes_6[32];
        for (int l = 0; l < 32; l++) {
            lanes_6[l] = 0;
        }
        #pragma omp simd
        for (int l = 0; l < 8; l++) {
            const int i = l;
            const float x_1 = a0_0[i];
            const float mul_3 = x_1 * x_2;
            const float mul_4 = mul_3 * mul_3;
            const double f64_5 = (double)mul_4;
            lanes_6[l] += f64_5;
        }
        const double sum_7 = p_tree_sum_f64(lanes_6);
        a2[r] = sum_7;
    }
}

// nn.lua:122, sum_of_squares nn.lua:122
// a0 f32 [hidden 6] read
// a1 f32 [] read
// a2 f64 [] read
// a3 f32 [] written
void mul_sum_of_squares_add_14(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const float *a0 = (const float *)b[0];
    const float *a1 = (const float *)b[1];
    const double *a2 = (const double *)b[2];
    float *a3 = (float *)b[3];
    const float x_1 = a1[0];
    const double x_7 = a2[0];
    const float f32_8 = (float)x_7;
    for (int64_t r = lo; r < hi; r++) {
        double lanes_5[32];
        for (int l = 0; l < 32; l++) {
            lanes_5[l] = 0;
        }
        #pragma omp simd
        for (int l = 0; l < 6; l++) {
            const int i = l;
            const float x_0 = a0[i];
            const float mul_2 = x_0 * x_1;
            const float mul_3 = mul_2 * mul_2;
            const double f64_4 = (double)mul_3;
            lanes_5[l] += f64_4;
        }
        const double sum_6 = p_tree_sum_f64(lanes_5);
        const float f32_9 = (float)sum_6;
        const float add_10 = f32_8 + f32_9;
        a3[0] = add_10;
    }
}

// silu tiny.lua:10
// a0 f32 [batch 2, seq 5, ffn 8] read
// a1 f32 [batch 2, seq 5, ffn 8] written
void silu_1(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const float *a0 = (const float *)b[0];
    float *a1 = (float *)b[1];
    for (int64_t r = lo; r < hi; r++) {
        #pragma omp simd
        for (int i = 0; i < 80; i++) {
            const float x_0 = a0[i];
            const float sigmoid_1 = p_sigmoid_f32(x_0);
            const float mul_2 = x_0 * sigmoid_1;
            a1[i] = mul_2;
        }
    }
}

// sum_of_squares nn.lua:122
// a0 f64 [vocab 11] read
// a1 f64 [] written
void sum_of_squares_13(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const double *a0 = (const double *)b[0];
    double *a1 = (double *)b[1];
    for (int64_t r = lo; r < hi; r++) {
        double lanes_1[32];
        for (int l = 0; l < 32; l++) {
            lanes_1[l] = 0;
        }
        #pragma omp simd
        for (int l = 0; l < 11; l++) {
            const int i = l;
            const double x_0 = a0[i];
            lanes_1[l] += x_0;
        }
        const double sum_2 = p_tree_sum_f64(lanes_1);
        a1[0] = sum_2;
    }
}

// sum_of_squares nn.lua:122, nn.lua:122
// a0 f64 [ffn 8] read
// a1 f32 [] read
// a2 f32 [] written
void sum_of_squares_add_16(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const double *a0 = (const double *)b[0];
    const float *a1 = (const float *)b[1];
    float *a2 = (float *)b[2];
    const float x_3 = a1[0];
    for (int64_t r = lo; r < hi; r++) {
        double lanes_1[32];
        for (int l = 0; l < 32; l++) {
            lanes_1[l] = 0;
        }
        #pragma omp simd
        for (int l = 0; l < 8; l++) {
            const int i = l;
            const double x_0 = a0[i];
            lanes_1[l] += x_0;
        }
        const double sum_2 = p_tree_sum_f64(lanes_1);
        const float f32_4 = (float)sum_2;
        const float add_5 = x_3 + f32_4;
        a2[0] = add_5;
    }
}

// sum_of_squares nn.lua:122, nn.lua:122, nn.lua:123
// a0 f64 [hidden 6] read
// a1 f32 [] read
// a2 f32 [] written
void sum_of_squares_add_sqrt_18(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    const double *a0 = (const double *)b[0];
    const float *a1 = (const float *)b[1];
    float *a2 = (float *)b[2];
    const float x_3 = a1[0];
    for (int64_t r = lo; r < hi; r++) {
        double lanes_1[32];
        for (int l = 0; l < 32; l++) {
            lanes_1[l] = 0;
        }
        #pragma omp simd
        for (int l = 0; l < 6; l++) {
            const int i = l;
            const double x_0 = a0[i];
            lanes_1[l] += x_0;
        }
        const double sum_2 = p_tree_sum_f64(lanes_1);
        const float f32_4 = (float)sum_2;
        const float add_5 = x_3 + f32_4;
        const float sqrt_6 = p_sqrt_f32(add_5);
        a2[0] = sqrt_6;
    }
}
