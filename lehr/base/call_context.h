// The context in which a thread calls operators: the values that its scopes have set.
//
// A scope declares a ContextSlot beside its class, and sets it while it exists. All slots of a thread are one object,
// which can be read, listed and copied to another thread. It is thread-local because ranks may be threads.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace lehr {

/// The values of all slots, on one thread. A value is as large as a pointer, and zero where no scope set it. A copy
/// may be used as long as the scopes of its values exist.
class CallContext {
 public:
  static constexpr size_t kMostSlots = 16;

  /// Returns the context of this thread.
  static CallContext& of_this_thread();

  /// Returns the names of the slots whose values are not zero.
  std::vector<const char*> names() const;

 private:
  template <class T>
  friend class ContextSlot;
  std::array<uint64_t, kMostSlots> values_ = {};
};

/// Takes the next slot of all contexts. Throws a usage error if there are more than kMostSlots.
size_t add_context_slot(const char* name);

/// One value of the context: a pointer or a small number, T{} where no scope set it. Declare it as a global variable.
template <class T>
class ContextSlot {
 public:
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);

  explicit ContextSlot(const char* name) : index_(add_context_slot(name)) {}

  T get() const { return get(CallContext::of_this_thread()); }
  T get(const CallContext& context) const {
    T value;
    std::memcpy(&value, &context.values_[index_], sizeof(T));
    return value;
  }
  void set(T value) const {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    CallContext::of_this_thread().values_[index_] = bits;
  }

 private:
  size_t index_;
};

/// Sets a slot of this thread until destroyed, on the same thread.
template <class T>
class ContextScope {
 public:
  ContextScope(const ContextSlot<T>& slot, T value) : slot_(slot), before_(slot.get()) { slot.set(value); }
  ~ContextScope() { slot_.set(before_); }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const ContextSlot<T>& slot_;
  T before_;
};

/// Replaces the context of this thread by a copy of another thread's until destroyed.
class WithContext {
 public:
  explicit WithContext(const CallContext& context);
  ~WithContext();
  WithContext(const WithContext&) = delete;
  WithContext& operator=(const WithContext&) = delete;

 private:
  CallContext before_;
};

}  // namespace lehr
