/*
 * radix.c
 *		A radix tree of 64-bit keys and 64-bit values, a byte of the key per
 *		level.
 *
 * A node has a bitmap of 256 bits that tells which bytes it has, and a packed
 * array of their slots: the place of a slot is the number of bits before its
 * own.  So there is one kind of node and one way to look into it, whatever its
 * size, and a node of n slots takes 40 + 8 n bytes, n rounded up to the next of
 * a few capacities.
 *
 * Freund's tree, which the post measured as "radix", has six kinds of nodes
 * (1, 4, 16, 32, 128 and 256 slots) with a search of its own for each.
 */
#include "structure.h"

#include "miscadmin.h"
#include "utils/memutils.h"

typedef struct RadixNode
{
	uint64		present[4];		/* a bit for each byte */
	uint8		before[4];		/* bits in the words before; 255 at most */
	uint16		count;
	uint8		capacity;		/* index into capacities[] */
	uint8		shift;			/* of the byte that this level looks at */
	uint64		slots[FLEXIBLE_ARRAY_MEMBER];	/* values, or children */
} RadixNode;

static const uint16 capacities[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256};

typedef struct Tree
{
	RadixNode	   *root;
	MemoryContext pools[lengthof(capacities)];
} Tree;

static inline int
bits(uint64 word)
{
	/* The compiler's own would be a call, without an option for newer processors. */
	word -= (word >> 1) & UINT64CONST(0x5555555555555555);
	word = (word & UINT64CONST(0x3333333333333333)) +
		((word >> 2) & UINT64CONST(0x3333333333333333));
	word = (word + (word >> 4)) & UINT64CONST(0x0f0f0f0f0f0f0f0f);
	return (int) ((word * UINT64CONST(0x0101010101010101)) >> 56);
}

static Size
node_size(int capacity)
{
	return offsetof(RadixNode, slots) + capacities[capacity] * sizeof(uint64);
}

static RadixNode *
make_node(Tree *tree, int capacity, int shift)
{
	RadixNode	   *node = MemoryContextAllocZero(tree->pools[capacity], node_size(capacity));

	node->capacity = capacity;
	node->shift = shift;
	return node;
}

/* The slot of a byte, or NULL. */
static inline uint64 *
find_slot(RadixNode *node, uint8 byte)
{
	int			word = byte >> 6;
	uint64		bit = UINT64CONST(1) << (byte & 63);

	if ((node->present[word] & bit) == 0)
		return NULL;
	return &node->slots[node->before[word] + bits(node->present[word] & (bit - 1))];
}

/*
 * Add a byte that is not there and return its slot.  A full node is replaced
 * by a larger one, and what pointed to it is made to point to that.
 */
static uint64 *
add_slot(Tree *tree, RadixNode **place, uint8 byte)
{
	RadixNode	   *node = *place;
	int			word = byte >> 6;
	uint64		bit = UINT64CONST(1) << (byte & 63);
	int			rank;

	if (node->count == capacities[node->capacity])
	{
		RadixNode	   *larger = make_node(tree, node->capacity + 1, node->shift);

		memcpy(larger->present, node->present, sizeof(node->present));
		memcpy(larger->before, node->before, sizeof(node->before));
		memcpy(larger->slots, node->slots, node->count * sizeof(uint64));
		larger->count = node->count;
		pfree(node);
		*place = node = larger;
	}
	rank = node->before[word] + bits(node->present[word] & (bit - 1));
	memmove(&node->slots[rank + 1], &node->slots[rank], (node->count - rank) * sizeof(uint64));
	node->slots[rank] = 0;
	node->present[word] |= bit;
	node->count++;
	for (int i = word + 1; i < 4; i++)
		node->before[i]++;
	return &node->slots[rank];
}

/* The value of a key, made if it is not there. */
static uint64 *
value_of(Tree *tree, uint64 key)
{
	RadixNode	  **place = &tree->root;

	/* Grow upwards until the root's level looks at the key's first byte. */
	while (tree->root->shift < 56 && key >> tree->root->shift > 0xff)
	{
		RadixNode	   *above = make_node(tree, 0, tree->root->shift + 8);

		if (tree->root->count > 0)
			*add_slot(tree, &above, 0) = (uint64) (uintptr_t) tree->root;
		else
			pfree(tree->root);
		tree->root = above;
	}
	for (;;)
	{
		int			shift = (*place)->shift;
		uint8		byte = (key >> shift) & 0xff;
		uint64	   *slot = find_slot(*place, byte);

		if (slot == NULL)
		{
			slot = add_slot(tree, place, byte);
			if (shift > 0)
				*slot = (uint64) (uintptr_t) make_node(tree, 0, shift - 8);
		}
		if (shift == 0)
			return slot;
		place = (RadixNode **) slot;
	}
}

static void *
radix_load(const ItemPointerData *dead, int64 count)
{
	Tree	   *tree = palloc0(sizeof(Tree));

	for (int i = 0; i < (int) lengthof(capacities); i++)
		tree->pools[i] = SlabContextCreate(CurrentMemoryContext, "tidbench radix nodes",
										   i < 8 ? SLAB_DEFAULT_BLOCK_SIZE : 8 * SLAB_DEFAULT_BLOCK_SIZE,
										   node_size(i));
	tree->root = make_node(tree, 0, 0);
	for (int64 i = 0; i < count;)
	{
		uint64		value;
		uint64		key = next_word(dead, count, &i, &value);

		CHECK_FOR_INTERRUPTS();
		*value_of(tree, key) = value;
	}
	return tree;
}

static bool
radix_contains(const void *set, const ItemPointerData *tid)
{
	RadixNode	   *node = ((const Tree *) set)->root;
	uint64		number = tid_number(tid);
	uint64		key = key_of(number);

	if (node->shift < 56 && key >> node->shift > 0xff)
		return false;
	for (;;)
	{
		uint64	   *slot = find_slot(node, (key >> node->shift) & 0xff);

		if (slot == NULL)
			return false;
		if (node->shift == 0)
			return (*slot & bit_of(number)) != 0;
		node = (RadixNode *) (uintptr_t) *slot;
	}
}

const Structure radix = {"radix", radix_load, radix_contains};
