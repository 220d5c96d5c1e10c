// cut_build.c: the graph of one stage: its tables, a copy of each value it computes, leaves for what it receives.
//
// Nodes are added in the order of the whole graph, so the numbers of an all-reduce over stages stand in one order on all of
// them. Axes, places, op calls and layers keep their indices; inputs, parameters, states and accumulators get new ones.
#include "cut.h"

typedef struct {
    const Cut *c;
    Graph *g;
    int stage, chunks;
    uint64_t bit;
    Val **at;      // by chunk of this stage, by value of the whole graph; STATIC values are in [0]
    Val *joint;
    uint32_t *inputs, *params, *states, *accs;  // index in the whole graph -> index here, UINT32_MAX: not here
    size_t hop;    // the next of c->hops
} Stage;

#define vec_copy(to, from)                                               \
    do {                                                                 \
        if (vec_len(from)) {                                             \
            (void)vec_add(to, vec_len(from));                            \
            memcpy(to, from, vec_len(from) * sizeof *(from));            \
        }                                                                \
    } while (0)

// ---- tables
static uint32_t *index_map(size_t n)
{
    uint32_t *map = xmalloc((n + 1) * sizeof *map);
    memset(map, 0xff, (n + 1) * sizeof *map);
    return map;
}

static void copy_header(Graph *g, const Graph *w)
{
    g->model = w->model, g->config = w->config, g->source = w->source;
    g->dtype = w->dtype, g->seq = w->seq, g->micro_batch = w->micro_batch, g->accum = w->accum;
    g->nlayers = w->nlayers, g->batch = w->batch, g->seq_axis = w->seq_axis, g->mesh = w->mesh;
    vec_clear(g->axes), vec_clear(g->locs), vec_clear(g->ops);
    vec_copy(g->axes, w->axes);
    vec_copy(g->locs, w->locs);
    vec_copy(g->ops, w->ops);
    vec_copy(g->layers, w->layers);
    vec_copy(g->scalars, w->scalars);
    vec_copy(g->outputs, w->outputs);
    vec_copy(g->train, w->train);
    vec_copy(g->maps, w->maps);
}

static void copy_params(Stage *s)
{
    const Graph *w = s->c->g;
    for (size_t p = 0; p < vec_len(w->params); p++) {
        uint64_t stages = s->c->param_stages[p];
        if (!(stages & s->bit)) continue;
        Param param = w->params[p];
        param.owner = (stages & (s->bit - 1)) == 0;
        param.number = (uint32_t)p;
        s->params[p] = (uint32_t)vec_len(s->g->params);
        vec_push(s->g->params, param);
        if (p < vec_len(w->param_axes)) vec_push(s->g->param_axes, w->param_axes[p]);
    }
    for (size_t a = 0; a < vec_len(w->accs); a++) {
        Acc acc = w->accs[a];
        bool here = acc.param < 0 ? (s->c->acc_stages[a] & s->bit) != 0 : s->params[acc.param] != UINT32_MAX;
        if (!here) continue;
        if (acc.param >= 0) acc.param = (int)s->params[acc.param];
        s->accs[a] = (uint32_t)vec_len(s->g->accs);
        vec_push(s->g->accs, acc);
    }
    for (size_t p = 0; p < vec_len(s->g->params); p++)
        if (s->g->params[p].acc >= 0) s->g->params[p].acc = (int)s->accs[s->g->params[p].acc];
    for (size_t i = 0; i < vec_len(w->states); i++) {
        State state = w->states[i];
        if (s->params[state.param] == UINT32_MAX) continue;
        state.param = (int)s->params[state.param];
        s->states[i] = (uint32_t)vec_len(s->g->states);
        vec_push(s->g->states, state);
    }
}

static void copy_inputs(Stage *s)
{
    const Cut *c = s->c;
    for (size_t i = 0; i < vec_len(c->g->inputs); i++) {
        bool here = false;
        for (int k = s->stage; k < c->chunks; k += c->stages) here |= needs_chunk(c, c->g->inputs[i].val, k);
        if (!here) continue;
        s->inputs[i] = (uint32_t)vec_len(s->g->inputs);
        vec_push(s->g->inputs, c->g->inputs[i]);
    }
}

// ---- nodes
// Leaves refer to their tables and are referred to by them. False: the table has no such entry here.
static bool new_id(Stage *s, Node *n)
{
    const uint32_t *map = n->kind == K_INPUT ? s->inputs : n->kind == K_PARAM ? s->params : n->kind == K_STATE ? s->states
                        : n->kind == K_TOTAL || n->kind == K_ACCUMULATE ? s->accs : NULL;
    if (map) n->u.id = map[n->u.id];
    return !map || n->u.id != UINT32_MAX;
}

static void enter(Stage *s, const Node *n, Val v)
{
    Graph *g = s->g;
    switch (n->kind) {
    case K_INPUT: g->inputs[n->u.id].val = v; break;
    case K_PARAM: g->params[n->u.id].val = v; break;
    case K_STATE: g->states[n->u.id].val = v; break;
    case K_TOTAL: g->accs[n->u.id].total = v; break;
    case K_SCALAR:
        for (size_t i = 0; i < vec_len(g->scalars); i++)
            if (g->scalars[i].slot == n->u.id) g->scalars[i].val = v;
        break;
    default: break;
    }
}

static void set_stamps(Graph *g, const Node *x, int chunk)
{
    g->cur_loc = x->loc, g->cur_op = x->op, g->cur_layer = x->layer, g->cur_backward = x->backward;
    g->cur_chunk = (uint8_t)chunk;
}

static Val operand(const Stage *s, Val v, Val w, int chunk)
{
    const Cut *c = s->c;
    Val in;
    if (c->where[w] != WHERE_STATIC) in = s->at[chunk][w];
    else in = c->where[v] == WHERE_STATIC && c->joint[w].on && !(c->early[v] & s->bit) ? s->joint[w] : s->at[0][w];
    if (!in) bug("cut: stage %d has value %u and not its operand %u", s->stage, v, w);
    return in;
}

static void add_node(Stage *s, Val v, int chunk)
{
    const Node *x = &s->c->g->nodes[v];
    Node n = *x;
    if (!new_id(s, &n)) return;
    for (int i = 0; i < n.nin; i++) n.in[i] = operand(s, v, x->in[i], chunk);
    if (n.kind == K_VIEW) n.u.view = graph_view(s->g, x->u.view);
    if (n.kind == K_ATTENTION || n.kind == K_ATTENTION_GRAD) n.u.attention = graph_attention(s->g, x->u.attention);
    if (n.kind == K_RESHARD) n.u.reshard = graph_reshard(s->g, x->u.reshard);
    set_stamps(s->g, x, chunk);
    s->at[chunk][v] = graph_add(s->g, &n);
    enter(s, &n, s->at[chunk][v]);
}

static void add_joint(Stage *s, Val v)
{
    const Joint *j = &s->c->joint[v];
    const Node *x = &s->c->g->nodes[v];
    if (!(j->at & s->bit)) return;
    set_stamps(s->g, x, 0);
    bool gives = j->from & s->bit;
    Val part;
    if (!gives) part = make_const(s->g, (DType)x->dtype, 0);
    else if (!j->fold) part = s->at[0][v];
    else part = s->at[0][x->in[0]] ? s->at[0][x->in[0]] : s->joint[x->in[0]];
    if (!part) bug("cut: stage %d lacks its part of value %u", s->stage, v);
    Reshard r = joint_reshard(j, x);
    bool plain = j->dropped && !(j->fold && gives);
    s->joint[v] = plain ? part : make_reshard(s->g, part, &r);
}

static void add_fixed(Stage *s, Val v)
{
    const Cut *c = s->c;
    const Node *x = &c->g->nodes[v];
    int home = c->home[v];
    if (home % c->stages == s->stage) add_node(s, v, home / c->stages);
    for (; s->hop < vec_len(c->hops) && c->hops[s->hop].val == v; s->hop++) {
        const Hop *h = &c->hops[s->hop];
        int from = h->from % c->stages, to = h->to % c->stages;
        Transfer t = {.tag = h->tag, .backward = h->backward};
        if (to == s->stage) {
            t.peer = (uint32_t)from, t.chunk = (uint8_t)(h->to / c->stages);
            set_stamps(s->g, x, 0);
            t.val = make_leaf(s->g, K_RECV, (uint32_t)vec_len(s->g->transfers), (DType)x->dtype, x->naxes, x->axes);
            s->at[t.chunk][v] = t.val;
            vec_push(s->g->transfers, t);
        }
        if (from == s->stage) {
            t.peer = (uint32_t)to, t.chunk = (uint8_t)(h->from / c->stages), t.send = true;
            t.val = s->at[t.chunk][v];
            vec_push(s->g->transfers, t);
        }
    }
}

static bool is_table_leaf(const Node *x)
{
    return x->kind == K_PARAM || x->kind == K_STATE || x->kind == K_TOTAL || x->kind == K_SCALAR;
}

static void add_value(Stage *s, Val v)
{
    const Cut *c = s->c;
    const Node *x = &c->g->nodes[v];
    if (!c->live[v] && !is_table_leaf(x)) return;
    switch ((Where)c->where[v]) {
    case WHERE_STATIC:
        if (c->made[v] & s->bit || is_table_leaf(x)) add_node(s, v, 0);
        if (c->joint[v].on) add_joint(s, v);
        break;
    case WHERE_FREE:
        for (int k = 0; k < s->chunks; k++)
            if (needs_chunk(c, v, k * c->stages + s->stage)) add_node(s, v, k);
        break;
    case WHERE_FIXED: add_fixed(s, v); break;
    }
}

// A stage that reads a tied parameter but has no gradient of it gives the others 0.
static void accumulate_nothing(Stage *s)
{
    Graph *g = s->g;
    for (uint32_t a = 0; a < vec_len(s->c->g->accs); a++) {
        if (s->accs[a] == UINT32_MAX || s->c->acc_stages[a] & s->bit) continue;
        const Acc *acc = &g->accs[s->accs[a]];
        const Node total = *node_of(g, acc->total);
        set_stamps(g, &total, 0);
        g->cur_backward = true;
        make_accumulate(g, s->accs[a], make_broadcast(g, make_const(g, acc->dtype, 0), total.naxes, total.axes));
    }
}

static void set_outputs(Stage *s)
{
    Graph *g = s->g;
    for (size_t i = 0; i < vec_len(g->outputs); i++) {
        Val v = g->outputs[i].val;
        g->outputs[i].val = s->c->joint[v].on ? s->joint[v] : s->at[0][v];
        if (!g->outputs[i].val) bug("cut: stage %d lacks output '%s'", s->stage, g->outputs[i].name);
    }
    Val loss = s->c->g->loss;
    for (int k = 0; k < s->chunks && !g->loss && s->c->home[loss] % s->c->stages == s->stage; k++) g->loss = s->at[k][loss];
}

Graph *cut_stage(const Cut *c, int stage)
{
    const Graph *w = c->g;
    Stage s = {c, graph_new(), stage, c->chunks / c->stages, 1ull << stage, NULL, xcalloc(c->n, sizeof(Val)),
               index_map(vec_len(w->inputs)), index_map(vec_len(w->params)), index_map(vec_len(w->states)),
               index_map(vec_len(w->accs)), 0};
    s.at = xcalloc((size_t)s.chunks, sizeof *s.at);
    for (int k = 0; k < s.chunks; k++) s.at[k] = xcalloc(c->n, sizeof(Val));
    copy_header(s.g, w);
    copy_params(&s);
    copy_inputs(&s);
    s.g->stage = stage, s.g->nstages = c->stages, s.g->nchunks = s.chunks;
    for (Val v = 1; v < c->n; v++) {
        add_value(&s, v);
        while (s.hop < vec_len(c->hops) && c->hops[s.hop].val <= v) s.hop++;
    }
    accumulate_nothing(&s);
    set_outputs(&s);
    for (int k = 0; k < s.chunks; k++) free(s.at[k]);
    free(s.at), free(s.joint), free(s.inputs), free(s.params), free(s.states), free(s.accs);
    set_stamps(s.g, &(Node){.layer = (int16_t)w->nlayers}, 0);
    return s.g;
}
