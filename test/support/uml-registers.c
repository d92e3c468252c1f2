// Stands between User Mode Linux 6.1 and the kernel where it reads and writes the vector registers
// of its programs. It is loaded before libc (LD_PRELOAD), and does two things.
//
// It lets it run on processors with AMX. Their registers make the area of vector registers larger
// than User Mode Linux knows, and the kernel takes the whole area only. So this hands on what User
// Mode Linux has, with AMX at rest: no program uses it without asking for it first, which needs a
// kernel that knows it.
//
// It saves time. User Mode Linux reads the registers at each stop of a program, and writes them
// before each step. Most often they are what they were, or a step of its own code follows, which
// does not use them. So they are written only before the program itself goes on, if they differ.
// The kernel allocates memory for each writing, which takes long.

enum { GO_ON = 7, GET_COMMON = 12, SET_COMMON = 13, GET_SIGNAL = 0x4202 };
enum { GET_REGISTERS = 0x4204, SET_REGISTERS = 0x4205, VECTORS = 0x202 };
/** Says which parts of the area are in use. The first ten are those that User Mode Linux keeps. */
enum { PARTS_IN_USE = 512, KNOWN_PARTS = 0x3ff };

struct area {
  char *start;
  unsigned long length;
};

extern long (*dlsym(void *where, const char *name))(long, long, long, struct area *);
extern void *memcpy(void *to, const void *from, unsigned long length);
extern int memcmp(const void *one, const void *other, unsigned long length);

static long (*next)(long, long, long, struct area *);

/** What is known of a program. User Mode Linux has one thread. */
static struct program {
  long process;
  unsigned long length;
  /** Whether `has` is what the kernel has, and whether `wanted` is still to be written. */
  int is_known, is_waiting;
  char has[4096], wanted[4096];
} programs[256];

static long read_vectors(long process, struct area *asked) {
  static char whole[65536] __attribute__((aligned(64)));
  struct area all = {whole, sizeof whole};
  long result = next(GET_REGISTERS, process, VECTORS, &all);
  if (result < 0) return result;
  if (all.length < asked->length) asked->length = all.length;
  memcpy(asked->start, whole, asked->length);
  return result;
}

static long write_vectors(long process, const struct area *given) {
  static char whole[65536] __attribute__((aligned(64)));
  struct area all = {whole, sizeof whole};
  memcpy(whole, given->start, given->length);
  *(unsigned long *)(whole + PARTS_IN_USE) &= KNOWN_PARTS;
  return next(SET_REGISTERS, process, VECTORS, &all);
}

static void write_what_waits(struct program *program) {
  if (!program->is_waiting) return;
  program->is_waiting = 0;
  if (program->is_known && !memcmp(program->has, program->wanted, program->length)) return;
  struct area area = {program->wanted, program->length};
  write_vectors(program->process, &area);
}

static struct program *program_of(long process) {
  struct program *program = &programs[process % 256];
  if (program->process == process) return program;
  write_what_waits(program);
  program->process = process;
  program->length = 0;
  program->is_known = 0;
  return program;
}

long ptrace(long request, long process, long kind, struct area *data) {
  if (!next) next = dlsym((void *)-1L, "ptrace");
  if (request == GET_COMMON || request == SET_COMMON || request == GET_SIGNAL) {
    return next(request, process, kind, data);
  }
  struct program *program = program_of(process);
  if (request == GET_REGISTERS && kind == VECTORS) {
    if (program->is_waiting || program->is_known) {
      data->length = program->length;
      memcpy(data->start, program->is_waiting ? program->wanted : program->has, data->length);
      return 0;
    }
    long result = read_vectors(process, data);
    if (result < 0 || data->length > sizeof program->has) return result;
    program->is_known = 1;
    program->length = data->length;
    memcpy(program->has, data->start, data->length);
    return result;
  }
  if (request == SET_REGISTERS && kind == VECTORS) {
    if (program->length == 0) return write_vectors(process, data);
    memcpy(program->wanted, data->start, program->length);
    program->is_waiting = 1;
    return 0;
  }
  // With this request runs code of User Mode Linux.
  if (request != GO_ON) write_what_waits(program);
  program->is_known = 0;
  return next(request, process, kind, data);
}
