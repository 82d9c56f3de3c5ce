#include <cuda_runtime.h>  // port: api-name

void launch(cudaLaunchConfig_t* config, void* kernel, void** arguments) { // port: api-unmapped
  cudaLaunchKernelExC(config, kernel, arguments);  // port: api-unmapped
}
