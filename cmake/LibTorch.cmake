# LibTorch::LibTorch from a folder with include/ and lib/, for this project and for those that use its package.
# Not find_package(Torch): that one looks for a CUDA toolkit and fails without.
#   LIBTORCH   the folder (in), also as an environment variable
include_guard(GLOBAL)

if(NOT EXISTS "${LIBTORCH}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "No LibTorch in '${LIBTORCH}' (run `make setup`, or set LIBTORCH to a folder with "
                      "include/ and lib/)")
endif()

foreach(name c10 torch_cpu c10_cuda torch_cuda)
  if(EXISTS "${LIBTORCH}/lib/lib${name}.so")
    add_library(LibTorch::${name} SHARED IMPORTED)
    set_target_properties(LibTorch::${name} PROPERTIES IMPORTED_LOCATION "${LIBTORCH}/lib/lib${name}.so")
  endif()
endforeach()

add_library(LibTorch::LibTorch INTERFACE IMPORTED)
target_include_directories(LibTorch::LibTorch INTERFACE
  "${LIBTORCH}/include" "${LIBTORCH}/include/torch/csrc/api/include")
target_link_libraries(LibTorch::LibTorch INTERFACE LibTorch::torch_cpu LibTorch::c10)

# Without -fopenmp at::parallel_for runs on one thread. The wheel's own runtime is the one that libtorch_cpu.so
# loads; linking it keeps a second one out of the process.
target_compile_options(LibTorch::LibTorch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
if(EXISTS "${LIBTORCH}/lib/libgomp.so.1")
  target_link_libraries(LibTorch::LibTorch INTERFACE "${LIBTORCH}/lib/libgomp.so.1")
else()
  target_link_libraries(LibTorch::LibTorch INTERFACE gomp)
endif()

# The wheel brings the headers of a fmt newer than the system's, without a library of that version, and they are found
# first by every file that uses torch.
target_compile_definitions(LibTorch::LibTorch INTERFACE FMT_HEADER_ONLY)

# The CUDA runtime that libtorch_cpu.so names lies beside the wheel's folder, where the loader finds it by itself
# and some linkers do not.
file(GLOB cuda_libraries "${LIBTORCH}/../nvidia/*/lib")
foreach(folder IN LISTS cuda_libraries)
  target_link_options(LibTorch::LibTorch INTERFACE "LINKER:-rpath-link,${folder}")
endforeach()
