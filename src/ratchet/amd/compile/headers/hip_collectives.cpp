// RCCL of one rank, for emulated programs: a collective is a copy, since there is no other's part.
#include <rccl/rccl.h>
#ifdef RATCHET_RCCL
#include <stdint.h>
#include <string.h>
#include <deque>

extern "C" {
int ratchet_hip_copy(void* to, const void* from, uint64_t bytes, int kind);
void ratchet_hip_complain(const char* text);
}
struct ncclComm {
  int rank;
};
namespace {
struct Half {
  void* place;
  size_t bytes;
};
ncclComm only;
std::deque<Half> sent, wanted;  // of one rank, which is its own peer
int groups;
size_t bytes(size_t count, ncclDataType_t kind) {
  static const int sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kind >= 0 && kind < 10 ? count * sizes[kind] : 0;
}
ncclResult_t copied(const void* from, void* to, size_t count, ncclDataType_t kind) {
  if (!from || !to) return ncclInvalidArgument;
  if (from == to || !count) return ncclSuccess;
  return ratchet_hip_copy(to, from, bytes(count, kind), hipMemcpyDeviceToDevice) ? ncclUnhandledCudaError : ncclSuccess;
}
ncclResult_t paired() {
  ncclResult_t code = ncclSuccess;
  for (; !sent.empty() && !wanted.empty() && !code; sent.pop_front(), wanted.pop_front()) {
    if (sent.front().bytes != wanted.front().bytes) return ncclInvalidUsage;
    code = copied(sent.front().place, wanted.front().place, sent.front().bytes, ncclInt8);
  }
  return code;
}
ncclResult_t one_rank(int ranks) {
  if (ranks == 1) return ncclSuccess;
  ratchet_hip_complain("its host code makes a communicator of several ranks: one GPU is emulated");
  return ncclInvalidArgument;
}
}  // namespace

extern "C" {
ncclResult_t ncclGetVersion(int* version) { return *version = 22203, ncclSuccess; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return memset(id, 0, sizeof *id), ncclSuccess; }
ncclResult_t ncclCommInitRank(ncclComm_t* made, int ranks, ncclUniqueId, int rank) {
  return *made = &only, rank ? ncclInvalidArgument : one_rank(ranks);
}
ncclResult_t ncclCommInitAll(ncclComm_t* made, int count, const int*) { return *made = &only, one_rank(count); }
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* code) { return *code = ncclSuccess, ncclSuccess; }
ncclResult_t ncclCommCount(ncclComm_t, int* count) { return *count = 1, ncclSuccess; }
ncclResult_t ncclCommCuDevice(ncclComm_t, int* device) { return *device = 0, ncclSuccess; }
ncclResult_t ncclCommUserRank(ncclComm_t, int* rank) { return *rank = 0, ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t code) { return code ? "unhandled error" : "no error"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGroupStart(void) { return ++groups, ncclSuccess; }
ncclResult_t ncclGroupEnd(void) { return groups && --groups ? ncclSuccess : paired(); }
ncclResult_t ncclAllReduce(const void* from, void* to, size_t n, ncclDataType_t kind, ncclRedOp_t, ncclComm_t,
                           hipStream_t) {
  return copied(from, to, n, kind);
}
ncclResult_t ncclReduce(const void* from, void* to, size_t n, ncclDataType_t kind, ncclRedOp_t, int, ncclComm_t,
                        hipStream_t) {
  return copied(from, to, n, kind);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t n, ncclDataType_t kind, ncclRedOp_t, ncclComm_t,
                               hipStream_t) {
  return copied(from, to, n, kind);
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t n, ncclDataType_t kind, int, ncclComm_t, hipStream_t) {
  return copied(from, to, n, kind);
}
ncclResult_t ncclBcast(void*, size_t, ncclDataType_t, int, ncclComm_t, hipStream_t) { return ncclSuccess; }
ncclResult_t ncclAllGather(const void* from, void* to, size_t n, ncclDataType_t kind, ncclComm_t, hipStream_t) {
  return copied(from, to, n, kind);
}
ncclResult_t ncclSend(const void* from, size_t n, ncclDataType_t kind, int peer, ncclComm_t, hipStream_t) {
  if (peer) return ncclInvalidArgument;
  sent.push_back(Half{(void*)from, bytes(n, kind)});
  return groups ? ncclSuccess : paired();
}
ncclResult_t ncclRecv(void* to, size_t n, ncclDataType_t kind, int peer, ncclComm_t, hipStream_t) {
  if (peer) return ncclInvalidArgument;
  wanted.push_back(Half{to, bytes(n, kind)});
  return groups ? ncclSuccess : paired();
}
}
#endif
