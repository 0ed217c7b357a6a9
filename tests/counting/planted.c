/* Work of known length, and a crash. */
#include "postgres.h"
#include "fmgr.h"

PG_MODULE_MAGIC;
PG_FUNCTION_INFO_V1(planted);
PG_FUNCTION_INFO_V1(crash);

/* Two instructions for each of n. */
Datum
planted(PG_FUNCTION_ARGS)
{
	int64 n = PG_GETARG_INT32(0);

	__asm__ volatile("1: subq $1, %0\n\tjnz 1b" : "+r"(n) : : "cc");
	PG_RETURN_INT32((int32) n);
}

Datum
crash(PG_FUNCTION_ARGS)
{
	*(volatile int *) 16 = 1;
	PG_RETURN_NULL();
}
