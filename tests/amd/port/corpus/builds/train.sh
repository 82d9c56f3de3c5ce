#!/bin/bash
set -e
# nvidia-smi in a comment does not count
# port: nvidia-program
nvidia-smi --query-gpu=name --format=csv
# port: cuda-variable
export CUDA_DEVICE_MAX_CONNECTIONS=1
export CUDA_VISIBLE_DEVICES=0,1
export NCCL_DEBUG=INFO
# port: nvidia-program
nsys profile -o trace torchrun --nproc-per-node 2 train.py
# port: nvidia-program, nvcc-flag
nvcc -O3 -gencode arch=compute_80,code=sm_80 -o kernel kernel.cu
# port: gpu-option
docker run --gpus all trainer python train.py
