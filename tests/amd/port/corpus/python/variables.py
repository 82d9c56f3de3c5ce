import os

os.environ["CUDA_LAUNCH_BLOCKING"] = "1"  # port: cuda-variable
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # port: cuda-variable
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
os.environ["NCCL_DEBUG"] = "INFO"
HOME = os.environ.get("CUDA_HOME")  # port: cuda-variable
