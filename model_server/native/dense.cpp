// The forward of a decoder on a CPU: one step per call, by a plain C ABI that executor/dense_cpu.py
// mirrors. Embedding, layers, final norm and head run inside one parallel run of a team of threads.
//
// A phase is a list of items, and an item's result depends on its inputs alone, so any thread may
// compute it. Phases of a layer when every sequence has one token:
//
//     norm, qkv | rope, cache, attention | output, sum | norm, in, activation | out, sum
//
// A layer with a gated delta rule or a state space has two phases where others attend, and one with a
// short convolution has one: see recurrence.h and short_conv.h. A layer may have no MLP.
// Steps with prompts have one more, since tokens of a sequence read each other's keys; a norm after
// a branch is one more too. The residual stream, norms and what lies between products are float32;
// products, keys and values are of the model's element type.
//
// build: amx avx512bf16 avx512 avx2 dotprod neon native -ffp-contract=fast
#include <exception>
#include <utility>

#include "attention.h"
#include "recurrence.h"
#include "short_conv.h"

namespace {

// Up to so many tokens, no thread waits for another that was preempted inside an item: it does the
// item again. For that, nothing is written twice within a step.
constexpr int64_t kMaxHelpedTokens = 64;
constexpr int64_t kMaxHelpedFloats = int64_t{1} << 26;

// What a thread owns.
struct Private {
  PreparedRows rows;
  AttentionScratch attention;
  RecurrenceScratch recurrence;
  std::vector<Chunk> chunks;
  ExpertRows expert_rows, adapter_rows;
  Router router;
};

// Where a layer's buffers begin in the memory of a step, in floats.
struct Layout {
  int64_t x, qkv, mixed, attended, inner, partials;
  int64_t attention_branch, mlp_branch;  // where a norm comes behind them
  int64_t logits, weights, expert_inner, expert_outs;
  int64_t shrunk[kNumParts];
  int64_t num_floats;  // of one layer
};

struct Engine {
  Model model;
  Team team;
  std::vector<std::unique_ptr<Private>> own;
  std::vector<AttentionPlan> plans;
  std::vector<int> plan_of;  // each layer; -1: it does not attend
  std::vector<Run> runs;
  Buffer<float> memory;
  // Which experts each layer chose. Threads make their lists of rows of it outside of items, maybe
  // when others are layers ahead: so it is never written twice within a step.
  Buffer<int32_t> chosen;  // [num_layers][num_tokens][top_k]
  Layout layout = {};
  int64_t x_stride, qkv_stride = 0, mixed_stride = 0, attended_stride = 0, inner_stride = 0;
  int64_t router_stride = 0, expert_inner_stride = 0, top_k = 0;
  bool fresh = false;  // every layer has buffers of its own in this step

  Engine(const Model &m, int num_threads)
      : model(m), team(num_threads), x_stride(stride_of(m.hidden)) {
    for (int i = 0; i < num_threads; ++i) own.emplace_back(new Private);
    for (int64_t l = 0; l < m.num_layers; ++l) add_layer(m.layers[l]);
    for (auto &each : own) each->rows.reserve(m.head);
  }

 private:
  void add_layer(const Layer &layer) {
    qkv_stride = std::max(qkv_stride, stride_of(layer.qkv[0].n + layer.qkv[1].n));
    attended_stride = std::max(attended_stride, stride_of(layer.output.k));
    inner_stride = std::max(inner_stride, stride_of(layer.mlp.inner));
    reserve_rows({&layer.qkv[0], &layer.qkv[1], &layer.output, &layer.mlp.ins, &layer.mlp.out});
    if (layer.experts != nullptr) add_experts(*layer.experts);
    if (layer.recurrence != nullptr) {
      const int64_t width = RecurrenceRow(*layer.recurrence).mixed_width;
      mixed_stride = std::max(mixed_stride, stride_of(width));
      for (auto &each : own) each->recurrence.reserve(*layer.recurrence);
      return plan_of.push_back(-1);
    }
    if (layer.conv != nullptr) return plan_of.push_back(-1);
    for (auto &each : own) each->attention.reserve(layer);
    size_t plan = 0;
    while (plan < plans.size() && !plans[plan].serves(layer)) ++plan;
    if (plan == plans.size()) plans.emplace_back(layer);
    plan_of.push_back(static_cast<int>(plan));
  }
  void add_experts(const Experts &experts) {
    inner_stride = std::max(inner_stride, stride_of(experts.shared.inner));
    expert_inner_stride = std::max(expert_inner_stride, stride_of(experts.each.inner));
    router_stride = std::max(router_stride, stride_of(experts.router.n));
    top_k = std::max(top_k, experts.top_k);
    for (auto &each : own) each->router.reserve(experts.num_experts);
    reserve_rows({&experts.router, experts.ins, experts.outs, &experts.shared.ins,
                  &experts.shared.out});
  }
  void reserve_rows(std::initializer_list<const Matrix *> matrices) {
    for (const Matrix *m : matrices) {
      if (m->packed == nullptr) continue;
      // What an adapter's shrinks read.
      Matrix wide = *m;
      wide.format = kF32;
      for (auto &each : own) {
        each->rows.reserve(*m);
        if (model.adapters.num_places > 0) each->rows.reserve(wide);
      }
    }
  }
};

// One thread's way through a step.
class Forward {
 public:
  Forward(Engine &engine, const Step &step, Worker &worker)
      : e_(engine), m_(engine.model), s_(step), worker_(worker),
        late_(engine.fresh ? Late::kHelp : Late::kWait), own_(*engine.own[worker.index()]),
        products_(worker, late_, own_.rows, own_.chunks) {}

  void run() {
    x_ = memory(0);
    if (s_.adapters != nullptr)
      own_.adapter_rows.group(s_.adapters, m_.adapters.num_places, s_.num_tokens, 1);
    embed();
    for (int64_t l = 0; l < m_.num_layers; ++l) {
      run_layer(l);
      if (l < s_.num_deep) add_deep(l);
    }
    if (s_.num_logits == 0) return;
    Product head{&m_.head,          x_,      e_.x_stride, s_.logits_rows,
                 &m_.final_norm, kLogits, s_.logits,   m_.vocab};
    head.scale = static_cast<float>(m_.logit_scale);
    head.softcap = static_cast<float>(m_.softcap);
    head.width = m_.vocab;
    products_.run(head, s_.num_logits);
  }

 private:
  float *memory(int64_t layer) const {
    return e_.memory.get() + (e_.fresh ? layer * e_.layout.num_floats : 0);
  }

  void embed() {
    const auto scale = static_cast<float>(m_.embed_scale);
    worker_.each(s_.num_tokens, late_, [&](int64_t t) {
      float *to = x_ + t * e_.x_stride, *line = own_.rows.lines.get();
      const int64_t id = s_.token_ids[t];
      if (id >= m_.vocab) {
        std::memcpy(to, image_row(0, id), m_.hidden * sizeof(float));
        return;
      }
      if (m_.embedding == nullptr)
        take_column(m_.head, id, line);
      else
        take_row(m_.embedding_element, m_.embedding, id, m_.hidden, line);
      for (int64_t i = 0; i < m_.hidden; ++i) to[i] = line[i] * scale;
    });
  }

  const float *image_row(int64_t depth, int64_t id) const {
    return s_.rows + (depth * s_.num_rows + id - m_.vocab) * m_.hidden;
  }

  void add_deep(int64_t layer) {
    worker_.each(s_.num_tokens, late_, [&](int64_t t) {
      if (s_.token_ids[t] < m_.vocab) return;
      const float *row = image_row(1 + layer, s_.token_ids[t]);
      float *to = x_ + t * e_.x_stride;
      for (int64_t i = 0; i < m_.hidden; ++i) to[i] += row[i];
    });
  }

  void run_layer(int64_t index) {
    const Layer &layer = m_.layers[index];
    float *base = memory(index);
    layer_ = index;
    Product qkv{layer.qkv, x_, e_.x_stride, nullptr, &layer.attention_norm, kStore,
                base + e_.layout.qkv, e_.qkv_stride};
    qkv.num_parts = layer.qkv[1].packed == nullptr ? 1 : 2;
    run_product(qkv, kMixerIn);
    GatedHeads heads;
    if (layer.recurrence != nullptr)
      heads = run_recurrence(*layer.recurrence, base);
    else if (layer.conv != nullptr)
      run_short_conv(*layer.conv, base);
    else
      attend(layer, e_.plans[e_.plan_of[index]], base);

    // Without a layer's own memory, sums go where the residual was; a parallel MLP still reads it.
    const int64_t size = s_.num_tokens * e_.x_stride;
    const bool has_mlp = layer.experts != nullptr || layer.mlp.ins.packed != nullptr;
    float *const old = x_;
    float *const next = e_.fresh ? memory(index + 1) + e_.layout.x : base + e_.layout.x;
    float *const middle = e_.fresh || layer.is_parallel ? base + e_.layout.x + size : x_;
    float *const y = has_mlp ? middle : next;
    add_branch(layer, layer.output, kMixerOut, base + e_.layout.attended, e_.attended_stride,
               layer.recurrence ? &heads : nullptr, layer.attention_post_norm,
               base + e_.layout.attention_branch, old, y);
    x_ = next;
    if (!has_mlp) return;

    const float *source = layer.is_parallel ? old : y;
    if (layer.experts != nullptr) {
      int32_t *chosen = e_.chosen.get() + index * s_.num_tokens * e_.top_k;
      return run_experts(layer, base, chosen, source, y);
    }
    run_mlp_in(layer.mlp, layer.mlp_norm, source, base + e_.layout.inner);
    add_branch(layer, layer.mlp.out, kMlpOut, base + e_.layout.inner, e_.inner_stride, nullptr,
               layer.mlp_post_norm, base + e_.layout.mlp_branch, y, x_);
  }

  void run_product(Product p, Part part) {
    AddedRows added;
    if (s_.adapters != nullptr && shrink(p, part, added)) p.added = &added;
    products_.run(p, s_.num_tokens);
  }

  // The rows of a product that have an adapter, times what shrinks them: a phase of its own. False:
  // no adapter adds to this product.
  bool shrink(const Product &p, Part part, AddedRows &added) {
    const Adapters &all = m_.adapters;
    const ExpertRows &list = own_.adapter_rows;
    list.cut(all.shrinks(layer_, part), all.num_places, worker_.num_threads(), own_.chunks);
    if (own_.chunks.empty()) return false;
    float *shrunk = memory(layer_) + e_.layout.shrunk[part];
    Product each{all.shrinks(layer_, part), p.rows, p.row_stride, list.tokens.data(), p.norm, kStore,
                 shrunk, all.width};
    each.heads = p.heads;
    each.targets = list.tokens.data();
    products_.run_chunks(each, own_.chunks);
    added = {all.expands(layer_, part), s_.adapters, shrunk, all.width};
    return true;
  }

  void attend(const Layer &layer, const AttentionPlan &plan, float *base) {
    const AttentionBuffers buffers{base + e_.layout.qkv, base + e_.layout.attended, e_.qkv_stride,
                                   e_.attended_stride, base + e_.layout.partials};
    const Rope *rope = layer.rope ? m_.ropes + layer.rope - 1 : nullptr;
    if (m_.element == kF32)
      AttentionRunner<F32>(worker_, late_, own_.attention, s_, layer, rope, buffers)
          .run(plan, e_.runs);
    else
      AttentionRunner<Bf16>(worker_, late_, own_.attention, s_, layer, rope, buffers)
          .run(plan, e_.runs);
  }

  // The answers, which the output product is to normalise, and to gate if they are not yet.
  GatedHeads run_recurrence(const Recurrence &recurrence, float *base) {
    const RecurrenceBuffers buffers{base + e_.layout.qkv,      base + e_.layout.mixed,
                                    base + e_.layout.attended, e_.qkv_stride,
                                    e_.mixed_stride,           e_.attended_stride};
    RecurrenceRunner(worker_, late_, own_.recurrence, s_, recurrence, buffers).run();
    const Norm &norm = recurrence.norm;
    const auto eps = static_cast<float>(norm.eps);
    if (recurrence.is_gate_first) return {norm.width, eps, norm.weights, 0};
    const float *gates = buffers.mixed + RecurrenceRow(recurrence).gate;
    return {norm.width, eps, gates, e_.mixed_stride};
  }

  void run_short_conv(const ShortConv &conv, float *base) {
    const ShortConvBuffers buffers{base + e_.layout.qkv, base + e_.layout.attended, e_.qkv_stride,
                                   e_.attended_stride};
    ShortConvRunner(worker_, late_, s_, conv, buffers).run();
  }

  void run_mlp_in(const Mlp &mlp, const Norm &norm, const float *rows, float *to) {
    const Ending ending = mlp.is_gated ? kGate : kActivate;
    Product in{&mlp.ins, rows, e_.x_stride, nullptr, &norm, ending, to, e_.inner_stride};
    in.activation = mlp.activation;
    run_product(in, kMlpIn);
  }

  // to = from + residual_scale * norm(rows * matrix), the product in `branch`; `heads`: of the rows,
  // or null.
  void add_branch(const Layer &layer, const Matrix &matrix, Part part, const float *rows,
                  int64_t stride, const GatedHeads *heads, const Norm &norm, float *branch,
                  const float *from, float *to) {
    const auto scale = static_cast<float>(layer.residual_scale);
    Product out{&matrix, rows, stride, nullptr, nullptr, kStore, branch, e_.x_stride};
    out.heads = heads;
    if (norm.kind == kNoNorm) {
      out.ending = kAdd;
      out.to = to;
      out.add = from;
      out.scale = scale;
      return run_product(out, part);
    }
    run_product(out, part);
    worker_.each(s_.num_tokens, late_, [&](int64_t t) {
      add_row(norm, scale, branch + t * e_.x_stride, from + t * e_.x_stride, to + t * e_.x_stride);
    });
  }

  // to = from + scale * norm(branch)
  void add_row(const Norm &norm, float scale, const float *branch, const float *from, float *to) {
    float *line = own_.rows.lines.get();
    if (norm.kind != kNoNorm) {
      normalise(norm, branch, m_.hidden, line);
      branch = line;
    }
    for (int64_t i = 0; i < m_.hidden; ++i) to[i] = from[i] + branch[i] * scale;
  }

  // x = from + residual_scale * norm(experts(norm(rows)))
  void run_experts(const Layer &layer, float *base, int32_t *chosen, const float *rows,
                   const float *from) {
    const Experts &experts = *layer.experts;
    const ExpertBuffers to{base + e_.layout.logits, chosen, base + e_.layout.weights,
                           base + e_.layout.expert_inner, base + e_.layout.expert_outs};
    products_.run({&experts.router, rows, e_.x_stride, nullptr, &layer.mlp_norm, kStore, to.logits,
                   e_.router_stride}, s_.num_tokens);
    const int32_t *handed = s_.experts ? s_.experts + (chosen - e_.chosen.get()) : nullptr;
    worker_.each(s_.num_tokens, late_, [&](int64_t t) {
      own_.router.route(experts, to.logits + t * e_.router_stride,
                        handed ? handed + t * e_.top_k : nullptr, to.chosen + t * experts.top_k,
                        to.weights + t * experts.top_k);
    });
    run_chosen(experts, layer.mlp_norm, rows, to);
    float *shared = base + e_.layout.mlp_branch;
    if (experts.has_shared) {
      run_mlp_in(experts.shared, layer.mlp_norm, rows, base + e_.layout.inner);
      run_product({&experts.shared.out, base + e_.layout.inner, e_.inner_stride, nullptr, nullptr,
                   kStore, shared, e_.x_stride}, kMlpOut);
    }
    worker_.each(s_.num_tokens, late_, [&](int64_t t) {
      float *line = own_.rows.lines.get() + e_.x_stride;
      combine(experts, to.outs + t * experts.top_k * e_.x_stride, e_.x_stride,
              to.weights + t * experts.top_k, shared + t * e_.x_stride,
              to.logits[t * e_.router_stride + experts.num_experts], m_.hidden, line);
      add_row(layer.mlp_post_norm, static_cast<float>(layer.residual_scale), line,
              from + t * e_.x_stride, x_ + t * e_.x_stride);
    });
  }

  void run_chosen(const Experts &experts, const Norm &norm, const float *rows,
                  const ExpertBuffers &to) {
    ExpertRows &list = own_.expert_rows;
    list.group(to.chosen, experts.num_experts, s_.num_tokens, experts.top_k);
    list.cut(experts.ins, experts.num_experts, worker_.num_threads(), own_.chunks);
    Product in{experts.ins, rows, e_.x_stride, list.tokens.data(), &norm,
               experts.each.is_gated ? kGate : kActivate, to.inner, e_.expert_inner_stride};
    in.activation = experts.each.activation;
    products_.run_chunks(in, own_.chunks);
    list.cut(experts.outs, experts.num_experts, worker_.num_threads(), own_.chunks);
    Product out{experts.outs, to.inner, e_.expert_inner_stride, nullptr, nullptr, kStore, to.outs,
                e_.x_stride};
    out.targets = list.slots.data();
    products_.run_chunks(out, own_.chunks);
  }

  Engine &e_;
  const Model &m_;
  const Step &s_;
  Worker &worker_;
  const Late late_;
  Private &own_;
  ProductRunner products_;
  int64_t layer_ = 0;
  float *x_ = nullptr;  // the residual stream, where it is at present
};

// Lays out the buffers of a step.
void lay_out(Engine &e, const Step &s) {
  const int64_t n = s.num_tokens;
  int64_t partials = 0;
  for (const AttentionPlan &plan : e.plans)
    partials = std::max(partials, plan.work.num_partial_floats);
  Layout &to = e.layout;
  int64_t end = 0;
  const auto take = [&end](int64_t size) { return std::exchange(end, end + padded(size)); };
  to.x = take(2 * n * e.x_stride);  // before and after the attention
  to.qkv = take(n * e.qkv_stride);
  to.mixed = take(n * e.mixed_stride);
  to.attended = take(n * e.attended_stride);
  to.attention_branch = take(n * e.x_stride);
  to.mlp_branch = take(n * e.x_stride);
  to.inner = take(n * e.inner_stride);
  to.partials = take(partials);
  to.logits = take(n * e.router_stride);
  to.weights = take(n * e.top_k);
  to.expert_inner = take(n * e.top_k * e.expert_inner_stride);
  to.expert_outs = take(n * e.top_k * e.x_stride);
  for (int64_t &shrunk : to.shrunk)
    shrunk = take(s.adapters == nullptr ? 0 : n * e.model.adapters.width);
  to.num_floats = end;
}

enum Status : int32_t { kDone, kOutOfMemory, kBadToken, kBadPosition };

Status check(const Model &m, const Step &s) {
  for (int64_t t = 0; t < s.num_tokens; ++t) {
    if (s.token_ids[t] < 0 || s.token_ids[t] >= m.vocab + s.num_rows) return kBadToken;
    if (s.positions[t] >= m.num_positions || s.positions[t] < -s.num_turned) return kBadPosition;
  }
  return kDone;
}

void forward(Engine &e, const Step &s) {
  const int64_t n = s.num_tokens;
  e.runs = cut_runs(s);
  for (size_t l = 0; l < e.plan_of.size(); ++l) {
    if (e.plan_of[l] < 0) continue;
    AttentionPlan &plan = e.plans[e.plan_of[l]];
    plan.make(e.model.layers[l], s, e.team.num_threads());
  }
  lay_out(e, s);
  const int64_t num_layers = e.model.num_layers + 1;
  // What is added behind a layer is written to what the layer wrote.
  e.fresh = s.num_deep == 0 && n <= kMaxHelpedTokens && e.team.num_threads() > 1 &&
            e.layout.num_floats * num_layers <= kMaxHelpedFloats;
  e.memory.need(e.layout.num_floats * (e.fresh ? num_layers : 1));
  e.chosen.need(e.model.num_layers * n * e.top_k);
  e.team.run([&](Worker &worker) { Forward(e, s, worker).run(); });
}

}  // namespace

extern "C" {
int64_t tandem_dense_sizes() {
  return static_cast<int64_t>(sizeof(Model) + 1000 * sizeof(Layer) + 1000000 * sizeof(Experts) +
                              1000000000 * sizeof(Step) + 1000000000000 * sizeof(Recurrence) +
                              1000000000000000 * sizeof(ShortConv));
}

Engine *tandem_dense_open(const Model *model, int32_t num_threads) {
  try {
    return new Engine(*model, num_threads);
  } catch (const std::exception &) {
    return nullptr;
  }
}
void tandem_dense_close(Engine *engine) { delete engine; }

int32_t tandem_dense_forward(Engine *engine, const Step *step) {
  const Status status = check(engine->model, *step);
  if (status != kDone) return status;
  try {
    forward(*engine, *step);
    return kDone;
  } catch (const std::bad_alloc &) {
    return kOutOfMemory;
  }
}

// Calls item(argument, i) for every i of [0, num_items) on the engine's threads, perhaps twice: it
// must then write the same. Answers whether there was memory.
int32_t tandem_dense_each(Engine *engine, int64_t num_items, void (*item)(void *, int64_t),
                          void *argument) {
  try {
    engine->team.run([&](Worker &worker) {
      worker.each(num_items, Late::kHelp, [&](int64_t i) { item(argument, i); });
    });
    return true;
  } catch (const std::bad_alloc &) {
    return false;
  }
}

int64_t tandem_dense_packed_bytes(const Matrix *m) { return m->packed_bytes(); }

// Fills panels [first, end) of a matrix, whose pointers are written to. `rows`: the address of each
// column's weights in `element`s, null for zeros.
void tandem_dense_pack(const Matrix *m, int64_t element, const void *const *rows, int64_t first,
                       int64_t end) {
  auto *packed = const_cast<void *>(m->packed);
  auto *scales = const_cast<float *>(m->scales);
  auto *sums = const_cast<int32_t *>(m->sums);
  if (element == kF32)
    pack_panels(*m, reinterpret_cast<const float *const *>(rows), first, end, packed, scales, sums);
  else
    pack_panels(*m, reinterpret_cast<const Bits16 *const *>(rows), first, end, packed, scales,
                sums);
}

// The same of a matrix in groups.
void tandem_dense_pack_groups(const Matrix *m, const GroupSources *from, int64_t first,
                              int64_t end) {
  pack_groups(*m, *from, first, end);
}
}
