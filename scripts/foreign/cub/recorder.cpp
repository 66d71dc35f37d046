// A CUDA runtime that launches nothing and writes down everything: CUB's own host code, linked with this file in place of
// the real runtime, decides grids, tiles and parameters as it would on a device, and each case becomes a JSON file
// that a test replays on a software device. Usage: PROGRAM MODULE.ptx OUT
//
// {"module": "cub_scan.ptx", "buffers": {"in": 4000, ...}, "steps": [
//   {"kernel": "...", "grid": [..], "block": [..], "shared": 0, "params": [{"bytes": "hex", "pointers": [{"at": 0, "ptr": "in", "offset": 0}]}]},
//   {"memset": {"ptr": "temporary", "offset": 0, "bytes": 1024, "value": 0}}]}
#include "recorder.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace {

// The device that CUB plans for. Few multiprocessors, so that small inputs already spread over every one and wrap around.
constexpr int multiprocessors = 4;
constexpr int blocks_each = 2;
constexpr int capability = 80;

// Addresses far from anything a kernel parameter holds by chance; each buffer has a range of its own.
constexpr std::uint64_t first_address = 0x5a5a000000000000, range = std::uint64_t{1} << 40;

struct Buffer {
  std::string name;
  std::size_t bytes;
};

struct State {
  std::string module, folder, current;
  std::map<std::string, std::vector<std::size_t>> parameters;  // by kernel: the bytes of each
  std::map<const void*, std::string> kernels;                  // by the host's stub
  std::vector<Buffer> buffers;
  std::vector<std::string> steps;
};

State& state() {
  static State made;
  return made;
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "recorder: %s\n", what.c_str());
  std::exit(1);
}

// The runtime is handed pointers to arguments and no sizes; they stand in the PTX.
void read_parameters(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail("cannot read " + path);
  std::stringstream text;
  text << file.rdbuf();
  const std::string ptx = text.str();
  const std::regex scalar(R"(\.param\s+\.[busf](\d+)\s)"), array(R"(\.param\s+\.align\s+\d+\s+\.b8\s+\S+\[(\d+)\])");
  for (std::size_t at = ptx.find(".entry "); at != std::string::npos; at = ptx.find(".entry ", at + 1)) {
    const std::size_t open = ptx.find('(', at), close = ptx.find(')', open);
    const std::string name = ptx.substr(at + 7, open - at - 7);
    std::stringstream declared(ptx.substr(open + 1, close - open - 1));
    auto& sizes = state().parameters[name];
    for (std::string line; std::getline(declared, line, ',');) {
      std::smatch found;
      if (std::regex_search(line, found, array)) sizes.push_back(std::stoul(found[1]));
      else if (std::regex_search(line, found, scalar)) sizes.push_back(std::stoul(found[1]) / 8);
      else if (line.find(".param") != std::string::npos) fail(name + ": what is the parameter `" + line + "`?");
    }
  }
}

// The buffer that an address points into, or one past; null if it is no address of ours.
const Buffer* owner(std::uint64_t address, std::uint64_t& offset) {
  if (address < first_address) return nullptr;
  const std::uint64_t index = (address - first_address) / range;
  offset = (address - first_address) % range;
  if (index >= state().buffers.size() || offset > state().buffers[index].bytes) return nullptr;
  return &state().buffers[index];
}

std::string place(std::uint64_t address) {
  std::uint64_t offset = 0;
  const Buffer* buffer = owner(address, offset);
  if (!buffer) fail(state().current + ": an address that belongs to no buffer");
  return "\"ptr\": \"" + buffer->name + "\", \"offset\": " + std::to_string(offset);
}

std::string parameter(const void* from, std::size_t bytes) {
  std::vector<unsigned char> raw(bytes);
  std::memcpy(raw.data(), from, bytes);
  std::string pointers;
  for (std::size_t at = 0; at + 8 <= bytes; at += 8) {
    std::uint64_t word, offset;
    std::memcpy(&word, &raw[at], 8);
    if (!owner(word, offset)) continue;
    if (!pointers.empty()) pointers += ", ";
    pointers += "{\"at\": " + std::to_string(at) + ", " + place(word) + "}";
    std::memset(&raw[at], 0, 8);
  }
  std::string hex;
  for (unsigned char byte : raw) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    hex += digits;
  }
  return "{\"bytes\": \"" + hex + "\", \"pointers\": [" + pointers + "]}";
}

std::string triple(dim3 d) {
  return "[" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + "]";
}

cudaError_t record_launch(const void* stub, dim3 grid, dim3 block, void** arguments, std::size_t shared) {
  const auto kernel = state().kernels.find(stub);
  if (kernel == state().kernels.end()) fail(state().current + ": launch of an unknown kernel");
  const auto sizes = state().parameters.find(kernel->second);
  if (sizes == state().parameters.end()) fail(kernel->second + " is not in the PTX");
  std::string parameters;
  for (std::size_t i = 0; i < sizes->second.size(); ++i) {
    parameters += std::string(i ? ",\n   " : "") + parameter(arguments[i], sizes->second[i]);
  }
  state().steps.push_back("{\"kernel\": \"" + kernel->second + "\", \"grid\": " + triple(grid) + ", \"block\": " + triple(block) +
                          ", \"shared\": " + std::to_string(shared) + ",\n   \"params\": [" + parameters + "]}");
  return cudaSuccess;
}

struct Configuration {
  dim3 grid, block;
  std::size_t shared;
  cudaStream_t stream;
} pushed;

}  // namespace

namespace recorder {

void begin(const char* name) {
  state().current = name;
  state().buffers.clear();
  state().steps.clear();
}

void* allocate(const char* name, std::size_t bytes) {
  if (bytes > range / 2) fail(std::string(name) + ": too large");
  state().buffers.push_back({name, bytes});
  return reinterpret_cast<void*>(first_address + (state().buffers.size() - 1) * range);
}

void end() {
  std::ofstream file(state().folder + "/" + state().module + "." + state().current + ".json");
  file << "{\"module\": \"" << state().module << ".ptx\",\n \"buffers\": {";
  for (std::size_t i = 0; i < state().buffers.size(); ++i) {
    file << (i ? ", " : "") << '"' << state().buffers[i].name << "\": " << state().buffers[i].bytes;
  }
  file << "},\n \"steps\": [\n";
  for (std::size_t i = 0; i < state().steps.size(); ++i) file << (i ? ",\n  " : "  ") << state().steps[i];
  file << "\n]}\n";
  if (!file.flush()) fail("cannot write " + state().current);
}

}  // namespace recorder

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
  state().kernels[stub] = name;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *static_cast<cudaStream_t*>(stream) = pushed.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t) {
  return record_launch(kernel, grid, block, arguments, shared);
}
cudaError_t cudaLaunchKernel(const void* stub, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t) {
  return record_launch(stub, grid, block, arguments, shared);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub, void** arguments) {
  return record_launch(stub, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  state().steps.push_back("{\"memset\": {" + place(reinterpret_cast<std::uint64_t>(to)) + ", \"bytes\": " +
                          std::to_string(bytes) + ", \"value\": " + std::to_string(value) + "}}");
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  if (kind != cudaMemcpyDeviceToDevice) fail(state().current + ": a copy that is not from device to device");
  state().steps.push_back("{\"copy\": {\"to\": {" + place(reinterpret_cast<std::uint64_t>(to)) + "}, \"from\": {" +
                          place(reinterpret_cast<std::uint64_t>(from)) + "}, \"bytes\": " + std::to_string(bytes) + "}}");
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = multiprocessors; break;
    case cudaDevAttrComputeCapabilityMajor: *value = capability / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = capability % 10; break;
    case cudaDevAttrMaxGridDimX: *value = 0x7fffffff; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 163 * 1024; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = 1024; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 164 * 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrUnifiedAddressing: *value = 1; break;
    default: fail("what is device attribute " + std::to_string(attribute) + "?");
  }
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->ptxVersion = attributes->binaryVersion = capability;
  attributes->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
  *blocks = blocks_each;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = blocks_each;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the recorder"; }

}  // extern "C"

void record_all();

int main(int count, char** arguments) {
  if (count != 3) fail("usage: PROGRAM MODULE.ptx OUT");
  const std::string path = arguments[1];
  const std::size_t slash = path.find_last_of('/');
  state().module = path.substr(slash == std::string::npos ? 0 : slash + 1);
  state().module.resize(state().module.size() - 4);
  state().folder = arguments[2];
  read_parameters(path);
  record_all();
}
