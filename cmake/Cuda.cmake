# libroformer_cuda.so: everything that names CUDA. The program does not link it but opens it at run time, so that one
# program serves machines with and without a GPU.
file(GLOB cuda_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/roformer/nn/kernels/*.cu")
if(NOT cuda_sources)
  return()
endif()

include(CheckLanguage)
set(CMAKE_CUDA_ARCHITECTURES 80 90 CACHE STRING "GPU architectures")
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER OR NOT TARGET LibTorch::torch_cuda)
  message(WARNING "CUDA was asked for, but nvcc or libtorch_cuda.so is missing: building without")
  return()
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # CMake 3.25 does not know it
endif()
find_package(CUDAToolkit REQUIRED)

add_library(roformer_cuda MODULE ${cuda_sources})
set_target_properties(roformer_cuda PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}" UNITY_BUILD OFF POSITION_INDEPENDENT_CODE ON
  CUDA_RUNTIME_LIBRARY Shared)
target_include_directories(roformer_cuda PRIVATE "${PROJECT_SOURCE_DIR}")
target_compile_options(roformer_cuda PRIVATE -O3)
# Nothing calls libtorch_cuda.so by name here: its loading registers the kernels. The small LibTorch lacks what
# libtorch_cuda.so needs in turn (cuBLAS, cuDNN ...), which matters only where the library is opened.
target_link_libraries(roformer_cuda PRIVATE LibTorch::LibTorch
  -Wl,--allow-shlib-undefined -Wl,--no-as-needed LibTorch::torch_cuda LibTorch::c10_cuda -Wl,--as-needed CUDA::cudart)
install(TARGETS roformer_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
