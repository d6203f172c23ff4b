/*
 * User-mode-linux before 6.13 passes ptrace(GETREGSET/SETREGSET, NT_X86_XSTATE) a buffer that is smaller than
 * the extended state of a processor with AVX-512 or AMX: setting it fails and the guest's init dies.
 * Preloaded into such a kernel, this fetches and sets the whole state and copies the part the kernel knows.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define XSTATE 0x202L /* NT_X86_XSTATE */

static unsigned char state[1 << 16] __attribute__((aligned(64)));

static long regset(int request, pid_t pid, struct iovec *user)
{
	struct iovec whole = { state, sizeof state };
	long result = syscall(SYS_ptrace, PTRACE_GETREGSET, pid, XSTATE, &whole);
	if (result < 0)
		return result;
	size_t length = user->iov_len < whole.iov_len ? user->iov_len : whole.iov_len;
	if (request == PTRACE_GETREGSET) {
		memcpy(user->iov_base, state, length);
		user->iov_len = length;
		return result;
	}
	memcpy(state, user->iov_base, length);
	return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, XSTATE, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list arguments;
	va_start(arguments, request);
	pid_t pid = va_arg(arguments, pid_t);
	void *address = va_arg(arguments, void *);
	void *data = va_arg(arguments, void *);
	va_end(arguments);

	if ((long)address == XSTATE && ((int)request == PTRACE_GETREGSET || (int)request == PTRACE_SETREGSET))
		return regset(request, pid, data);
	if ((int)request >= PTRACE_PEEKTEXT && (int)request <= PTRACE_PEEKUSER) {
		/* The raw system call stores the word; the library function returns it. */
		long word, result = syscall(SYS_ptrace, (long)request, pid, address, &word);
		if (result != 0)
			return result;
		errno = 0;
		return word;
	}
	return syscall(SYS_ptrace, (long)request, pid, address, data);
}
