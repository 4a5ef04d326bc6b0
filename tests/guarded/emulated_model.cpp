// Runs a compiled model with TVM's own runtime; built for another CPU and run under qemu.
//
// usage: emulated_model LIBRARY JOB RESULTS
// JOB: one line for every input: CODE BITS RANK EXTENTS... FILE (raw bytes)
// RESULTS: the bytes of all outputs, one after another.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Module;
using tvm::ffi::Tensor;

struct Memory {
  void AllocData(DLTensor* tensor) {
    tensor->data = std::aligned_alloc(64, (tvm::ffi::GetDataSize(*tensor) + 64) / 64 * 64);
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

Tensor read(const std::string& line) {
  std::istringstream fields(line);
  int code, bits, rank;
  fields >> code >> bits >> rank;
  std::vector<int64_t> shape(rank);
  for (int64_t& extent : shape) fields >> extent;
  std::string path;
  fields >> path;
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  DLDataType type{static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
  Tensor tensor = Tensor::FromNDAlloc(Memory(), tvm::ffi::Shape(shape), type, DLDevice{kDLCPU, 0});
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tensor.data_ptr()));
  return tensor;
}

void write(const Any& value, std::ostream& stream) {
  if (auto tuple = value.try_cast<tvm::ffi::Array<Any>>()) {
    for (const Any& element : *tuple) write(element, stream);
    return;
  }
  auto tensor = value.cast<Tensor>();
  size_t size = static_cast<size_t>(tensor.numel()) * ((tensor.dtype().bits + 7) / 8);
  stream.write(static_cast<const char*>(tensor.data_ptr()) + tensor.byte_offset(), static_cast<std::streamsize>(size));
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) return 2;
  try {
    Module library = Module::LoadFromFile(words[1]);
    Module machine = (*library->GetFunction("vm_load_executable"))().cast<Module>();
    constexpr int kPooled = 2;
    (*machine->GetFunction("vm_initialization"))(static_cast<int>(kDLCPU), 0, kPooled);
    std::vector<Any> inputs;
    std::ifstream job(words[2]);
    for (std::string line; std::getline(job, line);) inputs.push_back(read(line));
    std::vector<AnyView> arguments(inputs.begin(), inputs.end());
    Any result;
    (*machine->GetFunction("main")).CallPacked(arguments.data(), static_cast<int>(arguments.size()), &result);
    std::ofstream results(words[3], std::ios::binary);
    write(result, results);
    return results.good() ? 0 : 3;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 3;
  }
}
