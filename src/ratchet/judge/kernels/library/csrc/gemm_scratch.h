// Buffers that live as long as their thread and only grow, so that steady-state steps cause no page faults.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif

class Scratch {
  public:
    Scratch() = default;
    ~Scratch() { std::free(data_); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    // At least `size_bytes`, aligned to a huge page; what was in it is lost when it grows.
    void* reserve(int64_t size_bytes) {
        if (size_bytes <= size_bytes_) return data_;
        std::free(data_);
        data_ = nullptr;
        size_bytes_ = 0;
        const std::size_t page = std::size_t{2} << 20;
        const std::size_t rounded = (static_cast<std::size_t>(size_bytes) + page - 1) / page * page;
        data_ = std::aligned_alloc(page, rounded);
        if (data_ == nullptr) throw std::bad_alloc();
        size_bytes_ = static_cast<int64_t>(rounded);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
        madvise(data_, rounded, MADV_HUGEPAGE);
#endif
        return data_;
    }

  private:
    void* data_ = nullptr;
    int64_t size_bytes_ = 0;
};

// One buffer per purpose and calling thread.
template <int PURPOSE>
static void* scratch(int64_t size_bytes) {
    static thread_local Scratch buffer;
    return buffer.reserve(size_bytes);
}
