// Runs compiled kernels on memory that ends, or begins, with each argument; built for another CPU and run under qemu.
//
// usage: emulated_kernels LIBRARY JOBS RESULTS
// JOBS: lines "kernel NAME ARGUMENTS", each followed by one line for every argument:
//   "tensor CODE BITS RANK EXTENTS... FILE" (raw bytes), or "int VALUE"
// RESULTS: the bytes of all tensors after each call, first placed at the end of their memory, then at the beginning.

#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr size_t kPage = 4096;
constexpr int kThreads = 2;

struct Value {  // TVMFFIAny
  int32_t type;
  uint32_t padding;
  int64_t payload;
};

struct Tensor {  // DLTensor
  void* data;
  int32_t device_type, device_id, rank;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};

struct Argument {
  bool is_tensor = false;
  int64_t number = 0;
  uint8_t code = 0, bits = 0;
  std::vector<int64_t> shape, strides;
  std::vector<char> bytes;
};

struct Guarded {
  char* memory;
  size_t size;  // without the two pages that may not be touched
  char* data;
};

Guarded place(const std::vector<char>& bytes, bool at_end) {
  size_t size = (bytes.size() / kPage + 1) * kPage;
  if (!bytes.empty() && bytes.size() % kPage == 0) size = bytes.size();
  char* memory = static_cast<char*>(
      mmap(nullptr, size + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == MAP_FAILED || mprotect(memory + kPage, size, PROT_READ | PROT_WRITE) != 0) {
    std::perror("mmap");
    std::exit(2);
  }
  std::memset(memory + kPage, 0xA5, size);
  char* data = memory + kPage + (at_end ? size - bytes.size() : 0);
  std::memcpy(data, bytes.data(), bytes.size());
  return {memory, size, data};
}

bool intact_around(const Guarded& guarded, size_t bytes) {
  for (char* at = guarded.memory + kPage; at < guarded.memory + kPage + guarded.size; ++at) {
    bool inside = at >= guarded.data && at < guarded.data + bytes;
    if (!inside && static_cast<unsigned char>(*at) != 0xA5) return false;
  }
  return true;
}

}  // namespace

// What kernels call of TVM's runtime.
struct ParallelGroup {
  void* sync;
  int32_t tasks;
};

extern "C" {
using ParallelTask = int (*)(int, ParallelGroup*, void*);

int TVMBackendParallelLaunch(ParallelTask task, void* data, int tasks) {
  ParallelGroup group{nullptr, tasks == 0 ? kThreads : tasks};
  for (int number = 0; number < group.tasks; ++number) {
    if (int code = task(number, &group, data)) return code;
  }
  return 0;
}

void* TVMBackendAllocWorkspace(int, int, uint64_t size, int, int) { return std::aligned_alloc(64, (size + 63) / 64 * 64); }

int TVMBackendFreeWorkspace(int, int, void* memory) {
  std::free(memory);
  return 0;
}

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  std::cerr << kind << ": ";
  for (int32_t part = 0; part < count; ++part) std::cerr << (parts[part] ? parts[part] : "");
  std::cerr << std::endl;
}
}

int main(int count, char** words) {
  if (count != 4) return 2;
  void* library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::cerr << dlerror() << std::endl;
    return 2;
  }
  // A library calls the runtime through variables that whoever loads it sets.
  for (auto [symbol, function] : std::initializer_list<std::pair<const char*, void*>>{
           {"__TVMBackendParallelLaunch", reinterpret_cast<void*>(&TVMBackendParallelLaunch)},
           {"__TVMBackendAllocWorkspace", reinterpret_cast<void*>(&TVMBackendAllocWorkspace)},
           {"__TVMBackendFreeWorkspace", reinterpret_cast<void*>(&TVMBackendFreeWorkspace)}}) {
    if (void** variable = static_cast<void**>(dlsym(library, symbol))) *variable = function;
  }
  std::ifstream jobs(words[2]);
  std::ofstream results(words[3], std::ios::binary);
  std::string line, word, name;
  while (std::getline(jobs, line)) {
    size_t number = 0;
    std::istringstream(line) >> word >> name >> number;
    std::vector<Argument> arguments(number);
    for (Argument& argument : arguments) {
      std::getline(jobs, line);
      std::istringstream fields(line);
      fields >> word;
      argument.is_tensor = word == "tensor";
      if (!argument.is_tensor) {
        fields >> argument.number;
        continue;
      }
      int code, bits, rank;
      fields >> code >> bits >> rank;
      argument.code = code, argument.bits = bits;
      argument.shape.resize(rank), argument.strides.resize(rank);
      for (int64_t& extent : argument.shape) fields >> extent;
      int64_t stride = 1;
      for (int axis = rank - 1; axis >= 0; --axis) argument.strides[axis] = stride, stride *= argument.shape[axis];
      std::string path;
      fields >> path;
      std::ifstream file(path, std::ios::binary);
      argument.bytes.assign(std::istreambuf_iterator<char>(file), {});
    }
    using Kernel = int (*)(void*, const Value*, int32_t, Value*);
    auto kernel = reinterpret_cast<Kernel>(dlsym(library, ("__tvm_ffi_" + name).c_str()));
    if (kernel == nullptr) {
      std::cerr << "no kernel " << name << std::endl;
      return 2;
    }
    for (bool at_end : {true, false}) {
      std::cout << name << (at_end ? " (end)" : " (begin)") << std::endl;
      std::vector<Guarded> placed(number);
      std::vector<Tensor> tensors(number);
      std::vector<Value> values(number);
      for (size_t i = 0; i < number; ++i) {
        Argument& argument = arguments[i];
        if (!argument.is_tensor) {
          values[i] = {1, 0, argument.number};
          continue;
        }
        placed[i] = place(argument.bytes, at_end);
        tensors[i] = {placed[i].data, 1, 0, static_cast<int32_t>(argument.shape.size()), argument.code, argument.bits,
                      1, argument.shape.data(), argument.strides.data(), 0};
        values[i] = {7, 0, reinterpret_cast<int64_t>(&tensors[i])};
      }
      Value result{};
      if (kernel(nullptr, values.data(), static_cast<int32_t>(number), &result) != 0) return 3;
      for (size_t i = 0; i < number; ++i) {
        if (!arguments[i].is_tensor) continue;
        size_t size = arguments[i].bytes.size();
        if (!intact_around(placed[i], size)) {
          std::cerr << name << ": wrote beside argument " << i << std::endl;
          return 4;
        }
        results.write(placed[i].data, static_cast<std::streamsize>(size));
        munmap(placed[i].memory, placed[i].size + 2 * kPage);
      }
    }
  }
  return 0;
}
