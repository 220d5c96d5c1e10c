Row and elementwise kernels. A row kernel makes passes over the inner axes: element i belongs to lane i % 32, the lanes
of a sum are added in a fixed tree.
//: function
void ${name}(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    ${arguments}
    ${kernel}
    for (int64_t r = lo; r < hi; r++) {
        ${row}
    }
}
//: nest
for (${type} ${i} = ${from}; ${i} < ${to}; ${i}++) {
    ${body}
}
//: elements
#pragma omp simd
for (${type} ${i} = ${from}; ${i} < ${to}; ${i}++) {
    ${body}
}
//: lanes
${declare}
for (int l = 0; l < 32; l++) {
    ${start}
}
//: full
for (int i0 = 0; i0 < ${full}; i0 += 32) {
    #pragma omp simd
    for (int l = 0; l < 32; l++) {
        ${position}
        ${body}
    }
}
//: rest
#pragma omp simd
for (int l = 0; l < ${rest}; l++) {
    ${position}
    ${body}
}
