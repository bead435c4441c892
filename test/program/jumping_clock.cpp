// Preloaded into a program (LD_PRELOAD): the time of day jumps back and forth by an hour ten times per second, as if
// somebody set the clock. Clocks that nobody can set are not changed.
#include <dlfcn.h>
#include <sys/time.h>

#include <ctime>

namespace {
using ClockGetTime = int (*)(clockid_t, timespec*);

int read_clock(clockid_t clock, timespec* now) {
  static const auto real = reinterpret_cast<ClockGetTime>(::dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = real(clock, now);
  timespec steady{};
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) &&
      real(CLOCK_MONOTONIC, &steady) == 0) {
    now->tv_sec += (steady.tv_nsec / 100'000'000 % 3 - 1) * 3600;
  }
  return result;
}
}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  return read_clock(clock, now);
}

extern "C" int gettimeofday(timeval* now, void*) noexcept {
  timespec precise{};
  const int result = read_clock(CLOCK_REALTIME, &precise);
  *now = {precise.tv_sec, precise.tv_nsec / 1000};
  return result;
}

extern "C" time_t time(time_t* now) noexcept {
  timespec precise{};
  read_clock(CLOCK_REALTIME, &precise);
  if (now != nullptr) {
    *now = precise.tv_sec;
  }
  return precise.tv_sec;
}
