scatter_add: tokens in order, a tile of columns side by side.
//: function
void ${name}(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi)
{
    ${arguments}
    ${kernel}
    for (int64_t r = lo; r < hi; r++) {
        ${row}
    }
}
//: clear
${if}for (int v = 0; v < ${extent}; v++) {
    ${term}
    #pragma omp simd
    for (int l = 0; l < ${n}; l++) {
        ${position}
        ${body}
    }
}
//: tokens
for (int t = 0; t < ${tokens}; t++) {
    ${term}
    if (${inside}) {
        #pragma omp simd
        for (int l = 0; l < ${n}; l++) {
            ${position}
            ${body}
        }
    }
}
