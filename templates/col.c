Column sums: rows in blocks of 64, in order; a tile of columns side by side.
//: function
void ${name}(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    ${arguments}
    ${kernel}
    for (int64_t r = lo; r < hi; r++) {
        ${row}
    }
}
//: columns
${declare}
for (int l = 0; l < ${n}; l++) {
    ${start}
}
for (int k0 = 0; k0 < ${rows}; k0 += 64) {
    const int k1 = k0 + 64 < ${rows} ? k0 + 64 : ${rows};
    for (int l = 0; l < ${n}; l++) {
        ${clear}
    }
    for (int k = k0; k < k1; k++) {
        ${term}
        #pragma omp simd
        for (int l = 0; l < ${n}; l++) {
            ${position}
            ${body}
        }
    }
    #pragma omp simd
    for (int l = 0; l < ${n}; l++) {
        ${add}
    }
}
//: finish
#pragma omp simd
for (int l = 0; l < ${n}; l++) {
    ${position}
    ${finish}
}
