// coll_local_p2p.c: messages between ranks of one process.
//
// Unmatched posts and sends stand in two queues of the receiving rank, in order. Who comes second, receiver or sender,
// finds the other's entry and copies straight from buffer to buffer: nothing is ever stored between.
//
// Trap: once `done` is set its owner may reuse the message at any moment.
#include "coll_local.h"

static Message *new_message(Local *r, uint32_t peer, uint32_t tag, uint64_t bytes)
{
    Message *m = r->unused;
    if (!m)
        bug("more than %u posts and sends are in flight", r->coll.handles - (uint32_t)r->coll.plan->count[PLAN_COLLS]);
    if (peer >= r->coll.ranks) bug("rank %u of %u", peer, r->coll.ranks);
    r->unused = m->next;
    m->peer = peer;
    m->tag = tag;
    m->bytes = bytes;
    m->next = NULL;
    atomic_store(&m->done, false);
    return m;
}

void local_release(Local *r, Message *m)
{
    m->next = r->unused;
    r->unused = m;
}

// Takes the first entry of `owner`'s rank with this tag (sends are of many ranks, posts name the sender) out of the
// queue.
static Message *take(Message **queue, uint32_t sender, bool posts, uint32_t tag)
{
    for (Message **m = queue; *m; m = &(*m)->next) {
        Message *found = *m;
        if (found->tag != tag || (posts ? found->peer : found->owner->coll.rank) != sender) continue;
        *m = found->next;
        return found;
    }
    return NULL;
}

static void append(Message **queue, Message *m)
{
    while (*queue) queue = &(*queue)->next;
    *queue = m;
}

static void transfer(Message *post, Message *send, Message *other)
{
    if (post->bytes != send->bytes)
        bug("transfer %u is of %llu bytes where it is sent and %llu where it lands", post->tag,
            (unsigned long long)send->bytes, (unsigned long long)post->bytes);
    if (post->bytes) memcpy(post->to, send->from, post->bytes);
    Local *peer = other->owner;
    atomic_store(&(other == post ? send : post)->done, true);
    atomic_store(&other->done, true);
    local_wake(peer);
}

CollHandle local_post(Coll *c, uint32_t peer, uint32_t tag, void *to, uint64_t bytes)
{
    Local *r = (Local *)c;
    Message *m = new_message(r, peer, tag, bytes);
    m->to = to;
    coll_count_post(c, bytes);
    pthread_mutex_lock(&r->lock);
    Message *send = take(&r->sends, peer, false, tag);
    if (!send) append(&r->posts, m);
    pthread_mutex_unlock(&r->lock);
    if (send) transfer(m, send, send);
    return m->handle;
}

CollHandle local_send(Coll *c, uint32_t peer, uint32_t tag, const void *from, uint64_t bytes)
{
    Local *r = (Local *)c;
    Message *m = new_message(r, peer, tag, bytes);
    Local *to = r->world->locals[peer];
    m->from = from;
    coll_count_send(c, bytes);
    pthread_mutex_lock(&to->lock);
    Message *post = take(&to->posts, c->rank, true, tag);
    if (!post) append(&to->sends, m);
    pthread_mutex_unlock(&to->lock);
    if (post) transfer(post, m, post);
    return m->handle;
}
