// What kernels' sources ask of the CUDA runtime, on the host: a copy has been made when it was asked for.
#include <cuda_runtime_api.h>

#include <cstring>

extern "C" {

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  if (to == nullptr || from == nullptr) return cudaErrorInvalidValue;
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorInvalidValue ? "cudaErrorInvalidValue" : "another error";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorInvalidValue ? "invalid argument" : "another error";
}

}  // extern "C"
