
/* Denormal numbers take many processors a hundred times longer than others, and are taken for zero in arithmetic. */
static inline unsigned long get_mode(void) {
#if defined(__SSE__)
  return _mm_getcsr();
#elif defined(__aarch64__)
  unsigned long mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
#else
  return 0;
#endif
}

static inline void set_mode(unsigned long mode) {
#if defined(__SSE__)
  _mm_setcsr((unsigned)mode);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" ::"r"(mode));
#else
  (void)mode;
#endif
}

static inline unsigned long flushing(unsigned long mode) {
#if defined(__SSE__)
  return mode | 0x8040;
#else
  return mode | 1ul << 24;
#endif
}
