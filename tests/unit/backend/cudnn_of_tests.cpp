// A libcudnn.so.9 that computes nothing and fails where a test says: what cuDNN's frontend, and cudnn_attention.cpp
// behind it, make of cuDNN's errors. It has one kernel for whatever it is asked for.
#include <cudnn.h>

#include <cstdint>
#include <cstring>
#include <string>

namespace {

std::string failing_call;
cudnnStatus_t its_status = CUDNN_STATUS_SUCCESS;

cudnnStatus_t status_of(const char* call) {
  return failing_call == call ? its_status : CUDNN_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

// From now on this call has this status; an empty name: none has.
void cudnn_of_tests_fails(const char* call, int status) {
  failing_call = call;
  its_status = static_cast<cudnnStatus_t>(status);
}

size_t cudnnGetVersion() {
  return 91'900;
}
size_t cudnnGetCudartVersion() {
  return 13'000;
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = reinterpret_cast<cudnnHandle_t>(new int(0));
  return status_of("cudnnCreate");
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t) {
  return status_of("cudnnSetStream");
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t, cudaStream_t* stream) {
  *stream = nullptr;
  return CUDNN_STATUS_SUCCESS;
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
             ? "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
         : status == CUDNN_STATUS_EXECUTION_FAILED ? "CUDNN_STATUS_EXECUTION_FAILED"
         : status == CUDNN_STATUS_NOT_SUPPORTED    ? "CUDNN_STATUS_NOT_SUPPORTED"
                                                   : "another status";
}
void cudnnGetLastErrorString(char* message, size_t bytes) {
  std::strncpy(message, "its last words", bytes);
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t* descriptor) {
  *descriptor = reinterpret_cast<cudnnBackendDescriptor_t>(new int(0));
  return status_of("cudnnBackendCreateDescriptor");
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete reinterpret_cast<int*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendInitialize(cudnnBackendDescriptor_t) {
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                                       cudnnBackendAttributeType_t, int64_t, const void*) {
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t) {
  return status_of("cudnnBackendFinalize");
}
// One of whatever is a descriptor, which the caller has made; numbers are 256, of 32 bits (shared memory) 0, and notes
// none.
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                                       cudnnBackendAttributeType_t type, int64_t wanted, int64_t* count, void* values) {
  const bool is_number = type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_INT32;
  if (count != nullptr) *count = is_number || type == CUDNN_TYPE_BACKEND_DESCRIPTOR ? 1 : 0;
  if (!is_number || values == nullptr || wanted < 1) return CUDNN_STATUS_SUCCESS;
  if (type == CUDNN_TYPE_INT64)
    *static_cast<int64_t*>(values) = 256;
  else
    *static_cast<int32_t*>(values) = 0;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t) {
  return status_of("cudnnBackendExecute");
}

// Of the CUDA runtime, which the frontend loads for itself, what it asks of an H100.
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13'000;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
  return cudaSuccess;
}

}  // extern "C"
