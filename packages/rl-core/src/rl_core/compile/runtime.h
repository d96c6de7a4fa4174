// What torch's loader needs of a library that holds one graph without constants.
//
// It stands for torch's model_base.h, model_container.h and interface.cpp, which serve weights,
// devices and threads, and take the compiler longer than a graph. See AOTInductor's C interface,
// torch/csrc/inductor/aoti_runtime/interface.h.
#ifndef RL_CORE_RUNTIME
#define RL_CORE_RUNTIME

#include <array>
#include <optional>
#include <unordered_map>

#include <c10/util/generic_math.h>
#include <torch/csrc/inductor/aoti_runtime/scalar_to_tensor.h>
#include <torch/csrc/inductor/aoti_runtime/utils.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

#define AOTI_EXPORT extern "C" __attribute__((visibility("default"))) AOTIRuntimeError

namespace torch::aot_inductor {

using DeviceStreamType = void*;
using ConstantMap = std::unordered_map<std::string, RAIIAtenTensorHandle>;

struct AOTInductorModelKernelsBase {
  virtual ~AOTInductorModelKernelsBase() = default;
};

class AOTInductorModelBase {
 public:
  AOTInductorModelBase(
      size_t inputs, size_t outputs, size_t, const std::string&, std::optional<std::string>, bool)
      : inputs_info_(inputs), outputs_info_(outputs) {}

  size_t num_outputs() const {
    return outputs_info_.size();
  }

 protected:
  struct Info {
    const char* name;
  };

  void update_constants_map(std::shared_ptr<ConstantMap>) {}
  void update_constants_array(std::shared_ptr<std::vector<ConstantHandle>>) {}

  std::vector<Info> inputs_info_, outputs_info_;
  std::string in_spec_, out_spec_;
  const int32_t device_idx_ = -1;  // the CPU has no number
};

class AOTInductorModel : public AOTInductorModelBase {
 public:
  AOTInductorModel(
      std::shared_ptr<ConstantMap>,
      std::shared_ptr<std::vector<ConstantHandle>>,
      const std::string& device,
      std::optional<std::string> cubin_dir);

  std::unordered_map<std::string, AtenTensorHandle> const_run_impl(
      DeviceStreamType, AOTIProxyExecutorHandle, bool initialization);
  void _const_run_impl(
      std::vector<AtenTensorHandle>&, DeviceStreamType, AOTIProxyExecutorHandle);
  void run_impl(
      AtenTensorHandle* inputs,
      AtenTensorHandle* outputs,
      DeviceStreamType,
      AOTIProxyExecutorHandle);

 private:
  std::unique_ptr<AOTInductorModelKernelsBase> kernels_;
};

}  // namespace torch::aot_inductor

using torch::aot_inductor::AOTInductorModel;

AOTI_EXPORT AOTInductorModelContainerCreateWithDevice(
    AOTInductorModel** made, size_t, const char* device, const char*) {
  *made = new AOTInductorModel(nullptr, nullptr, device, std::nullopt);
  return AOTI_RUNTIME_SUCCESS;
}

AOTI_EXPORT AOTInductorModelContainerDelete(AOTInductorModel* model) {
  delete model;
  return AOTI_RUNTIME_SUCCESS;
}

AOTI_EXPORT AOTInductorModelContainerGetNumOutputs(const AOTInductorModel* model, size_t* number) {
  *number = model->num_outputs();
  return AOTI_RUNTIME_SUCCESS;
}

AOTI_EXPORT AOTInductorModelContainerGetNumConstants(const AOTInductorModel*, size_t* number) {
  *number = 0;
  return AOTI_RUNTIME_SUCCESS;
}

// The loader looks these up, and calls them for graphs with constants alone.
#define AOTI_NOT_HERE(name) \
  AOTI_EXPORT AOTInductorModel##name() { \
    return AOTI_RUNTIME_FAILURE; \
  }
AOTI_NOT_HERE(ContainerGetConstantName)
AOTI_NOT_HERE(ContainerGetConstantOriginalFQN)
AOTI_NOT_HERE(ContainerGetConstantDtype)
AOTI_NOT_HERE(ContainerExtractConstantsMap)
AOTI_NOT_HERE(ContainerUpdateUserManagedConstantBuffer)
AOTI_NOT_HERE(ContainerUpdateConstantBuffer)
AOTI_NOT_HERE(ContainerUpdateInactiveConstantBuffer)
AOTI_NOT_HERE(ContainerRunConstantFolding)
AOTI_NOT_HERE(ContainerSwapConstantBuffer)
AOTI_NOT_HERE(ContainerGetCallSpec)
AOTI_NOT_HERE(ContainerFreeInactiveConstantBuffer)
AOTI_NOT_HERE(ContainerUpdateConstantBufferFromCpu)
AOTI_NOT_HERE(ContainerGetConstantsBlobSize)
AOTI_NOT_HERE(UpdateConstantsFromBlob)

static thread_local std::string last_error;

AOTI_EXPORT AOTInductorGetLastError(const char** message) {
  *message = last_error.c_str();
  return AOTI_RUNTIME_SUCCESS;
}

AOTI_EXPORT AOTInductorModelContainerRun(
    AOTInductorModel* model,
    AtenTensorHandle* inputs,  // which the graph deletes
    size_t,
    AtenTensorHandle* outputs,  // which the caller deletes
    size_t,
    void* stream,
    AOTIProxyExecutorHandle proxy_executor) {
  try {
    model->run_impl(inputs, outputs, stream, proxy_executor);
  } catch (const std::exception& error) {
    last_error = error.what();
    return AOTI_RUNTIME_FAILURE;
  }
  return AOTI_RUNTIME_SUCCESS;
}

#endif
