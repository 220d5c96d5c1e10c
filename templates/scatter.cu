scatter_add: a thread a column, tokens in order.
//: function
extern "C" __global__ void ${name}(${arguments}const double *s)
{
    ${kernel}
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c < ${rows}) {
        ${row}
    }
}
//: clear
${if}for (int v = 0; v < ${extent}; v++) {
    ${body}
}
//: tokens
for (int t = 0; t < ${tokens}; t++) {
    ${body}
}
