Column sums: a thread a column, its rows in blocks of 64.
//: function
extern "C" __global__ void ${name}(${arguments}const double *s)
{
    ${kernel}
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c < ${rows}) {
        ${row}
    }
}
//: column
${declare}
${start}
for (int k0 = 0; k0 < ${rows}; k0 += 64) {
    const int k1 = k0 + 64 < ${rows} ? k0 + 64 : ${rows};
    ${clear}
    for (int k = k0; k < k1; k++) {
        ${body}
    }
    ${add}
}
