// The system calls of the daemon, for runtimes that take a profile (Kubernetes: `Localhost`).
// `npm run docs` writes one file beside the configuration of each overlay. They were recorded by strace
// while the packet cases ran; test/security/confined.test.ts runs the cases under them.

const words = (text) => text.trim().split(/\s+/)

/** Node, the C library, and the programs that are started: nft, iptables, ipset, modprobe. */
const ofPrograms = words(`
  access arch_prctl bind brk capget chdir clock_getres clock_gettime clock_nanosleep clone clone3 close
  close_range connect dup dup2 dup3 epoll_create1 epoll_ctl epoll_pwait epoll_wait eventfd2 execve exit
  exit_group faccessat faccessat2 fchmod fcntl fdatasync flock fstat fsync ftruncate futex getcwd getdents64
  getegid geteuid getgid getpeername getpid getppid getpriority getrandom getresgid getresuid getrlimit
  getrusage getsockname getsockopt gettid gettimeofday getuid inotify_add_watch inotify_init1
  inotify_rm_watch ioctl kill listen lseek lstat madvise membarrier mkdir mmap mprotect mremap munmap
  nanosleep newfstatat open openat pidfd_open pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl
  pread64 prlimit64 pselect6 pwrite64 read readlink readlinkat readv recvfrom recvmmsg recvmsg rename renameat2
  restart_syscall riscv_flush_icache rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn
  rt_sigsuspend rt_sigtimedwait sched_get_priority_max sched_get_priority_min sched_getaffinity
  sched_getparam sched_getscheduler sched_setaffinity sched_yield sendmmsg sendmsg sendto set_robust_list
  set_tid_address setpriority setsockopt shutdown sigaltstack socket socketpair stat statfs statx sysinfo tgkill
  timerfd_create timerfd_settime umask uname unlink unlinkat vfork wait4 waitid write writev
`)

/** Servers: metrics, health, and the listeners of userspace mode. */
const ofServers = words('accept accept4')

/** Userspace mode copies bytes from socket to socket inside the kernel. */
const ofUserspace = words('splice tee')

/** Programs and maps in the kernel. */
const ofEbpf = words('bpf')

const kernelMode = [...ofPrograms, ...ofServers]
/** With the calls of userspace mode, because the overlay configures a fallback to it. */
const withFallback = [...kernelMode, ...ofUserspace]

export const systemCalls = {
  userspace: withFallback,
  iptables: withFallback,
  ipvs: withFallback,
  nftables: withFallback,
  ebpf: [...withFallback, ...ofEbpf],
}

/** The file in the form that Docker, containerd and CRI-O read. */
export const profileOf = (mode) =>
  `${JSON.stringify(
    {
      defaultAction: 'SCMP_ACT_ERRNO',
      architectures: ['SCMP_ARCH_X86_64', 'SCMP_ARCH_AARCH64'],
      syscalls: [{ names: [...systemCalls[mode]].sort(), action: 'SCMP_ACT_ALLOW' }],
    },
    undefined,
    2,
  )}\n`
