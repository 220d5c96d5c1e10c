Row and elementwise kernels: elements a grid apart, or a warp a row with the lanes of row.c.
//: function
extern "C" __global__ void ${name}(${arguments}const double *s)
{
    ${kernel}
    ${row}
}
//: elements
for (${type} i = (${type})blockIdx.x * blockDim.x + threadIdx.x; i < ${total}; i += (${type})gridDim.x * blockDim.x) {
    ${body}
}
//: rows
const int lane = threadIdx.x % 32;
const int64_t r = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
if (r < ${rows}) {
    ${row}
}
//: pass
${declare}
for (int i = lane; i < ${extent}; i += 32) {
    ${body}
}
