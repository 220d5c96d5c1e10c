// agree.c: under a launcher each process has its own command line, plan and data: all must be told the same.
//
// Each fact is a number (a hash of up to 62 bits) that must be the largest and the smallest of all ranks. Which rank differs
// is not known; what differs is.
#include "agree.h"
#include <xxhash.h>

static void agree(const Ranks *r, const char *what, bool have, uint64_t hash)
{
    Coll *c = r->coll[0];
    int64_t most = have ? (int64_t)(hash >> 2) : INT64_MIN, least = have ? -(int64_t)(hash >> 2) : INT64_MIN;
    if (!c->max(c, &most) || !c->max(c, &least)) end_quietly();
    if (most != -least) fatal("the processes of this run do not have the same %s", what);
}

static uint64_t plan_hash(const Plan *p) { return XXH3_64bits(p->base, p->size); }

// What changes numbers, or what all ranks do together.
static uint64_t options_hash(const Options *o)
{
    const double numbers[] = {(double)o->steps, (double)o->warmup, (double)o->ignore, (double)o->seed, o->lr, o->beta1, o->beta2, o->eps,
                              o->weight_decay, o->weight_decay_1d, o->clip, o->min_lr, o->decay, o->shuffle, o->compile_only,
                              o->check_copies, o->init != NULL, o->save != NULL, o->dump_grads != NULL, o->trace != NULL};
    uint64_t hash = XXH3_64bits(numbers, sizeof numbers);
    for (size_t i = 0; i < vec_len(o->set); i++) {
        hash = XXH3_64bits_withSeed(o->set[i].name, strlen(o->set[i].name), hash);
        hash = XXH3_64bits_withSeed(&o->set[i].value, sizeof o->set[i].value, hash);
    }
    return hash;
}

// Of the number of samples, and the first and the last of them.
static uint64_t data_hash(const Plan *p, const Data *d)
{
    uint64_t hash = (uint64_t)data_samples(d), n = p->info->seq;
    int32_t *tokens = xcalloc(n, sizeof *tokens), *targets = xcalloc(n, sizeof *targets);
    for (int last = 0; last < 2; last++) {
        data_batch(d, last ? (uint64_t)data_samples(d) - 1 : 0, 1, INT64_MIN, -1, tokens, targets);
        hash = XXH3_64bits_withSeed(tokens, n * sizeof *tokens, hash);
    }
    free(tokens), free(targets);
    return hash;
}

void ranks_agree(const Ranks *r, const Plan *p, const Options *o)
{
    if (!r->launched) return;
    agree(r, "plan", true, plan_hash(p));
    agree(r, "options", true, options_hash(o));
}

void ranks_agree_on_data(const Ranks *r, const Plan *p, const Data *d)
{
    if (r->launched) agree(r, "data", d != NULL, d ? data_hash(p, d) : 0);
}
