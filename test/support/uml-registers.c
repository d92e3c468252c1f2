// Lets User Mode Linux 6.1 run on processors with AMX. It is loaded before libc (LD_PRELOAD).
//
// The registers of AMX make the area of vector registers larger than User Mode Linux knows, and the
// kernel takes the whole area only. So this hands on what User Mode Linux has, with AMX at rest:
// no program uses it without asking for it first, which needs a kernel that knows it.

enum { GET_REGISTERS = 0x4204, SET_REGISTERS = 0x4205, VECTORS = 0x202 };
/** Says which parts of the area are in use. The first ten are those that User Mode Linux keeps. */
enum { PARTS_IN_USE = 512, KNOWN_PARTS = 0x3ff };

struct area {
  char *start;
  unsigned long length;
};

extern long (*dlsym(void *where, const char *name))(long, long, long, struct area *);
extern void *memcpy(void *to, const void *from, unsigned long length);

static char whole[65536] __attribute__((aligned(64)));

long ptrace(long request, long process, long kind, struct area *asked) {
  static long (*next)(long, long, long, struct area *);
  if (!next) next = dlsym((void *)-1L, "ptrace");
  int gets = request == GET_REGISTERS, sets = request == SET_REGISTERS;
  if (kind != VECTORS || !(gets || sets)) return next(request, process, kind, asked);

  struct area all = {whole, sizeof whole};
  if (sets) {
    memcpy(whole, asked->start, asked->length);
    *(unsigned long *)(whole + PARTS_IN_USE) &= KNOWN_PARTS;
  }
  long result = next(request, process, kind, &all);
  if (result < 0 || sets) return result;
  if (all.length < asked->length) asked->length = all.length;
  memcpy(asked->start, whole, asked->length);
  return result;
}
