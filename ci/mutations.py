"""Faults that the tests have to see: (file, text that is there once, what it becomes, tests that concern it).

What cannot be seen is left out, with why:
    products.c, how a tile is multiplied: where it is not BLAS's number, products.py lets BLAS do it
    sums.c, `ring_bell` and `is_done` of what is sent: who sleeps asks by itself, too, and small messages leave at once
    arm/spill.py, `name in reads and name in saved`: what is read has been written, and is saved if it made room
    arm/bus.py, `max(now, seconds[at])`: who draws no faster than it computes is not done before that; of rounding alone
    cache.py, `cache.held[1:] > southward[1:]` as `> 0`: a row that gives both ways has two tokens more than its goal
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
ON_RANKS = frozenset({"meshrt/mesh/wires/sums.c"})  # files of what goes on between ranks


@dataclass(frozen=True)
class Mutation:
    """`tests`: files below tests/, whose names are there once, or tests in them, with blanks between."""

    file: str
    old: str
    new: str
    tests: str
    compiled: bool = False  # of Python that the compiled core alone has use for

    def made(self, text: str) -> str:
        """The file's text with the mutation. ValueError unless what it replaces is there once."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.file} has {self.old!r} {count} times, not once: mend ci/mutations.py")
        return text.replace(self.old, self.new)

    @property
    def test_files(self) -> list[str]:
        return [_found(test) for test in self.tests.split()]

    @property
    def meets_core(self) -> bool:
        """Do its tests run with the compiled core?"""
        return self.compiled or self.file.endswith((".c", ".h"))

    @property
    def how(self) -> tuple[bool, bool]:
        """Do its tests run with the compiled core, and on several ranks?"""
        return self.meets_core, self.file in ON_RANKS

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.file}: {old}  ->  {new or 'nothing'}"


@cache
def _found(test: str) -> str:
    """FILE or FILE::TEST as seen from the checkout. ValueError unless one file below tests/ has that name."""
    name, *rest = test.split("::")
    (path,) = (CHECKOUT / "tests").rglob(name)
    return "::".join([str(path.relative_to(CHECKOUT)), *rest])


PATHS = "test_reference.py::test_random_paths_that_meet_take_the_time_of_the_reference"
RAMPS = "test_reference.py::test_ramps_go_to_the_head_that_asks_first_whatever_the_program_waits_for_first"
PROGRAMS = "test_reference.py::test_programs_whose_heads_are_in_order_take_the_time_of_the_reference"
NEIGHBOURS = "test_reference.py::test_any_packets_to_neighbours_take_the_time_of_the_reference"
LINKS = "test_reference.py::test_links_are_given_to_one_head_at_a_time"
APART = "test_reference.py::test_paths_that_do_not_meet_take_alpha_a_hop_and_the_tail"
LATER = (
    "test_reference.py::test_a_link_is_not_kept_for_a_packet_that_comes_later"
    " test_reference.py::test_a_link_is_not_kept_for_a_packet_that_was_sent_before_and_comes_later"
    " test_reference.py::test_a_link_is_given_to_a_packet_that_comes_between_two_that_were_sent_before"
)
BOTH = (
    "test_reference.py::test_two_packets_for_every_core_take_its_ramp_in_turn"
    " test_reference.py::test_packets_that_ask_together_take_a_ramp_as_their_transfers_were_started"
)
TAKEN = "test_reference.py::test_a_link_is_taken_from_when_its_last_head_asked"
REFERENCE = f"{TAKEN} {LATER} {BOTH} {PATHS} {APART} {RAMPS} {NEIGHBOURS} {LINKS} {PROGRAMS}"
FABRIC = f"test_fabric.py test_clock.py test_odd_places.py {REFERENCE}"
SUMS = "test_allreduce_cycles.py test_collectives.py test_clock.py test_allreduce.py"
CORE = f"test_core.py {FABRIC} {SUMS}"
PRODUCTS = "test_core.py"
SHIFTS = "test_collectives.py test_shift.py"
CROSSBAR, ROUNDS = "test_crossbar.py test_itinerary.py", "test_itinerary.py"
STRIPS, BANDS = "test_strips.py", "test_bands.py"
ROWS = "test_sums.py test_sends.py"
NEURON = "test_neuron_memory.py test_neuron_timeline.py test_neuron_runtime.py test_neuron_tiles.py"
TOUCHED = "test_neuron_regions.py test_nki_regions.py"
HBM_TO_HBM = "test_neuron_llama.py::test_a_sum_over_the_cores_goes_from_hbm_to_hbm"
GPU = "test_gpu.py test_group.py"
ARM = "test_arm_split.py test_arm_kernels.py test_arm_linear.py"
FLASH = "test_arm_llama.py::test_layers_from_flash_change_no_bit test_arm_trace.py"
DRAM = (
    "test_arm_llama.py::test_dram_is_limited"
    " test_arm_llama.py::test_a_buffer_that_is_given_back_makes_room_to_the_last_byte"
)
CSL, TRAINS = "test_csl_fabric.py test_csl_language.py test_csl_trains.py", "test_csl_trains.py"
CODES, EXPERTS = "test_quantized.py test_quantize_halfwords.py", "test_experts.py"
RESUME = (
    "test_checkpoint_machines.py::test_goes_on_as_if_nothing_had_happened"
    " test_checkpoint_machines.py::test_who_goes_on_stands_where_the_other_stood"
)
REGIONS = (
    "test_segments.py::test_a_repeated_stretch_multiplies_the_bytes_of_every_block"
    " test_segments.py::test_whoever_is_followed_has_moved_the_heads_that_nobody_waits_for"
    " test_segments.py::test_two_regions_count_the_bytes_of_a_token_in_its_phase"
    " test_segments.py::test_a_phase_has_what_other_blocks_sent_in_it"
    " test_segments.py::test_whoever_is_followed_has_entered_what_it_did"
)
TAMPERING = "test_tampering.py::test_a_channel_that_was_left_moves_nothing test_tampering.py test_fabric.py"

TABLE: dict[str, list[tuple[str, str, str] | tuple[str, str, str, bool]]] = {
    "meshrt/mesh/wires/fabric.py": [
        ("taking = streaming_cycles(block, tiles) if stream else busy", "taking = busy", FABRIC),
        ("counters.messages += schedule.sent * view.count", "counters.messages += schedule.sent", FABRIC),
        ("counters.hops += schedule.hops * view.count", "counters.hops += schedule.hops", FABRIC),
        ("counters.max_hops = schedule.longest", "counters.max_hops = schedule.longest + 1", FABRIC),
    ],
    "meshrt/mesh/wires/receiving.py": [
        ("arrival.landing.time > arrival.lane.time.get()", "arrival.landing.time >= arrival.lane.time.get()", FABRIC),
        ("ramps.serve(block, arrival, positions[low + cores])", "ramps.serve(block, arrival)", FABRIC),
        ("positions[low + cores] & (arrival.landing", "(arrival.landing", FABRIC),
    ],
    "meshrt/mesh/wires/software.py": [
        ("cycles = block.device.beta + (0.0", "cycles = (0.0", FABRIC),
        ("chosen.spend(block, work.cycles, work.stages)", "chosen.spend(block, work.cycles, 0)", FABRIC),
        ("counters.stages += chosen.count", "counters.stages += 1", f"{FABRIC} test_collectives.py"),
        ("busy if rate is None else max(busy, numbers / rate)", "busy", FABRIC),
    ],
    "meshrt/mesh/wires/tally.py": [
        ("links[way][:, cores] += packets * nbytes", "links[way][:, cores] += nbytes", FABRIC),
        ("for active in block.ledger.at_work.values():", "for active in (block,):", REGIONS),
    ],
    "meshrt/mesh/wires/core.c": [
        ("    if (high <= ask) {", "    if (high < ask) {", CORE),
        ("*time = ask > until ? ask : until;", "*time = ask;", CORE),
        ("*free = *time + busy;", "*free = *time;", CORE),
        ("double begin = ask > low ? ask : low;", "double begin = ask;", CORE),
        ("begin + busy <= high;", "begin + busy < high;", CORE),
        ("if (!(inside && ask >= low)) {", "if (!inside) {", CORE),
        ("*idle = inside ? begin + busy : until;", "*idle = until;", CORE),
        ("*free = inside ? until : until + busy;", "*free = until + busy;", CORE),
        ("counted->longest_wait = begin - ask;", "counted->longest_wait = begin;", CORE),
        ("AT(core, i) > AT(free, i) ? AT(core, i) : AT(free, i)", "AT(core, i)", CORE),
        ("AT(time, i) = start + alpha;", "AT(time, i) = start;", CORE),
        ("        AT(time, i) += alpha;\n    }", "    }", CORE),
        ("if (step->cells[4].base) /*", "if (0) /*", f"{CORE} test_defects.py"),
        ("AT(landed, i) > AT(time, i);\n        AT(hops", "AT(landed, i) >= AT(time, i);\n        AT(hops", CORE),
        ("late ? AT(its_stages, i) : AT(stages, i)", "AT(stages, i)", CORE),
        ("at && *times[at - 1] > *time", "at && *times[at - 1] >= *time", CORE),
        ("*second < *first", "*second > *first", CORE),
        ("*time = asks + of->tail;", "*time = asks;", CORE),
        ("        AT(time, i) += tail;\n", "", CORE),
        ("if (step->kind == ANY_LATE && !late)", "if (step->kind == ANY_LATE)", CORE),
        ("y * places->advance;", "0;", CORE),
    ],
    "meshrt/mesh/products.c": [
        ("adds ? *to + sum : sum", "sum", PRODUCTS),
        ("at[of] += leading->steps[d][of];", ";", PRODUCTS),
        ("found.sizes[within] *= size;", ";", PRODUCTS),
        ("joined.sizes[within] *= all.sizes[d];", ";", "test_products.py"),
    ],
    "meshrt/mesh/vectors.c": [
        ("sum[j] = end[4 - (s.n - j)];", "sum[j] = end[j - columns];", "test_products.py"),
        ("            c[j] += sum[j];", "            c[j] = sum[j];", "test_products.py"),
        ("l = 4 - left; l < 4", "l = 3; l < 4", "test_products.py"),
        ("        l = 4;", "        l = 8;", "test_products.py"),
    ],
    "meshrt/mesh/wires/tiles.c": [
        ("room : begin + moves[n].from", "room : begin + moves[n].to", CORE),
        ("walk.to[d] == bytes && walk.from[d] == bytes", "walk.to[d] == bytes", CORE),
        ("count <= 2 * (size)", "count <= 3 * (size)", CORE),
        ("low * of->strides[0]", "0", CORE),
    ],
    "meshrt/mesh/wires/planning.py": [
        ('if cache.get("epoch") != block.tables.epoch:', 'if "epoch" not in cache:', TAMPERING),
        ("max(initial=0) > 1)", "max(initial=0) > 2)", FABRIC),
    ],
    "meshrt/mesh/wires/scouts.py": [
        ("trace.meets = meeting > 0", "trace.meets = False", FABRIC),
    ],
    "meshrt/mesh/block.py": [
        ("        other.settle()\n        ramps.settle(other)\n", "        ramps.settle(other)\n", REGIONS),
        ("        ramps.settle(other)\n", "", f"{REGIONS} test_segments.py test_regions.py"),
    ],
    "meshrt/mesh/wires/replay.py": [
        ("= start + alpha", "= start", APART),
        ("np.add(time, alpha, out=time)", "np.add(time, 0.0, out=time)", FABRIC),
        ("run.time[:, slots] += late", "run.time[:, slots] += 0 * late", "test_defects.py"),
        ("            np.maximum(cores, free, out=time)\n", "            np.copyto(time, cores)\n", FABRIC),
        ("np.add(time, busy, out=free)\n        else:", "np.copyto(free, time)\n        else:", FABRIC),
        ("run.ramp_out[:, at] = start + busy", "run.ramp_out[:, at] = start", FABRIC),
        ("start = np.maximum(start, links[:, at])", "pass", f"{FABRIC} test_collectives.py test_allreduce.py"),
        ("            links[:, at] = start + busy", "            links[:, at] = start", FABRIC),
        ("np.add(source.get(), hops, out=target.view)", "np.copyto(target.view, source.get())", FABRIC),
        ("target.put(source.get() + hops)", "target.put(source.get())", FABRIC),
        ("self.is_served = not passage.taking", "self.is_served = True", FABRIC),
        ("        block.clock.coming.append(arrival)", "        arrival.is_served = True", FABRIC),
        ("return not (clock.coming or", "return not (", "test_core.py", True),
        ("or clock.under_way or", "or", "test_core.py", True),
        ("        block.clock.under_way[id(arrival)] = arrival.take_path", "        pass", FABRIC),
    ],
    "meshrt/mesh/wires/lane.py": [
        ("np.zeros(np.size(part.hops))])[:, None]", "np.ones(np.size(part.hops))])[:, None]", FABRIC),
        ("int((lengths[way][:, cores] * packets).sum())", "int(lengths[way][:, cores].sum())", "test_defects.py"),
        ("for array in (block.clock.ramp_in,", "for array in (block.clock.ramp_out,", FABRIC),
    ],
    "meshrt/mesh/wires/heads.py": [
        ("after = float(start[0]) + block.device.alpha", "after = float(start[0])", FABRIC),
        ("after += float(view.of(clock.late[port])[line, core])", "pass", "test_defects.py"),
        ("heappush(heads, (time, waiting.number, 0,", "heappush(heads, (time, -waiting.number, 0,", FABRIC),
        ("waiting.landing.time[line, end] = time", "waiting.landing.time[line, end] = time + waiting.busy", FABRIC),
        ("    order.end_of_use(block)\n", "", FABRIC),
        ("order.give(block, start, waiting.busy,", "order.give(block, start, 0.0,", FABRIC),
    ],
    "meshrt/mesh/wires/ramps.py": [
        ("np.add(times, passage.tail, out=times)", "np.add(times, passage.busy, out=times)", FABRIC),
        ("arrival.passage.taking, arrival.passage.tail", "arrival.passage.taking, 0.0", FABRIC),
        ("asks <= own_asks if before else asks < own_asks", "asks <= own_asks", FABRIC),
        (" & (asks >= ramp_in)", "", FABRIC),
        ("starts + arrival.passage.tail", "starts", FABRIC),
        ("if len(coming) == 2 and _alike(", "if len(coming) == 2 and not _alike(", FABRIC),
        ("coming[0].passage, second < first", "coming[0].passage, second <= first", FABRIC),
        ("order.give(block, times, passage.taking, *ramps)\n        np.add", "np.add", FABRIC),
        ("times, taking, *chosen_ramps)", "times, arrival.passage.busy, *chosen_ramps)", FABRIC),
        ("for numbers in np.argsort(asks,", "for numbers in np.argsort(-asks,", FABRIC),
    ],
    "meshrt/mesh/wires/order.py": [
        ("np.add(times, busy, out=free)\n\n\n", "np.copyto(free, times)\n\n\n", FABRIC),
        ("late = asked_at > times", "late = asked_at >= times", FABRIC),
        ("inside = begin + each <= high", "inside = begin + each < high", FABRIC),
        ("held_up = ~(inside & (ask >= low))", "held_up = ~inside", FABRIC),
        ("np.where(inside, until, until + each)", "until", FABRIC),
        ("taken_at = free.get() - busy", "taken_at = free.get()", FABRIC),
        ("        unseen[id(schedule), id(views)] = schedule, views, busy, before\n", "", FABRIC),
        ("        _end(block, users.pop(other))", "        users.pop(other)", FABRIC),
        ("int(np.count_nonzero(held_up))", "int(held_up.any())", FABRIC),
        ("np.where(inside, begin + each, until), high", "np.where(inside, begin + each, until), ask", FABRIC),
    ],
    "meshrt/mesh/collectives/trees.py": [
        ("software.tail(block, tree.spread, partial, tree.adders)", "pass", SUMS),
        ("prod(partial.shape[2:]) * partial.itemsize", "0", SUMS),
        ("numbers, receivers, lines, stream, partial", "0, receivers, lines, stream, partial", SUMS),
        ("np.ones(tree.spread.length, bool) if tree.within is None else tree.within", "tree.adders", SUMS),
    ],
    "meshrt/mesh/collectives/scatter.py": [
        ("size, everyone, stream=stream, item", "numbers, everyone, stream=stream, item", SUMS),
        ("(n * size - numbers + (0 if stream else size))", "(0 if stream else size)", SUMS),
        ("            if step and passes", "            if passes", SUMS),
        ("chunk = (place - step) % n", "chunk = (place - place - step) % n", SUMS),
    ],
    "meshrt/mesh/collectives/shifts.py": [
        ("on = steps[strip::across] > step", "on = steps[strip::across] >= step", SHIFTS),
        ("[-place for place in rings.rows]", "[*rings.y.places]", f"{SHIFTS} test_gemm.py"),
    ],
    "meshrt/mesh/collectives/rings.py": [
        ("(-1 if reverse else 1)) % total]", "1) % total]", SHIFTS),
    ],
    "meshrt/mesh/collectives/broadcast.py": [
        ("line_tiles[...] = tiles[:, :, None]", "pass", "test_broadcast.py test_gemm_baselines.py"),
    ],
    "meshrt/mesh/exchange/convoy.py": [
        ("np.array([[device.beta], [0.0], [1.0]])", "np.array([[0.0], [0.0], [1.0]])", CROSSBAR),
        ("np.array([[device.alpha], [1.0], [0.0]])", "np.array([[0.0], [1.0], [0.0]])", CROSSBAR),
        ("counters.stages += count - new", "counters.stages += count", CROSSBAR),
        ("np.maximum(time, free[1], out=time)", "pass", CROSSBAR),
        ("np.maximum(state[TIME], free[0])", "state[TIME].copy()", CROSSBAR),
        ("head += self.seat_busy[span]", "pass", CROSSBAR),
        ("self.cells[ramp] = head", "pass", CROSSBAR),
        ("self.crossed[port][at] += self.seat_bytes[span]", "self.crossed[port][at] += self.nbytes", CROSSBAR),
        ("np.add(time, self.seat_busy[span], out=free)", "np.copyto(free, time)", CROSSBAR),
    ],
    "meshrt/mesh/wires/sums.c": [
        ("    case COPY_TILE:\n        memcpy(to, from, (size_t)row->count);", "    case COPY_TILE:", ROWS),
        ("to = use->to + (intptr_t)row->to;", "to = use->own + (intptr_t)row->to;", "test_sends.py"),
        ("from = use->own + (intptr_t)row->from;", "from = use->to + (intptr_t)row->from;", "test_sends.py"),
        ("to ? to : use->landing, &passage", "to ? to : use->to, &passage", "test_sends.py"),
        ("((float *)to)[i] = ((float *)to)[i] + ", "((float *)to)[i] = ", "test_sums.py"),
        ("((double *)to)[i] = ((double *)to)[i] + ", "((double *)to)[i] = ", "test_sums.py"),
        ("    case KEEP:\n        memcpy(to, from, sizeof(double));", "    case KEEP:", "test_sums.py"),
        ("        end_use(row);\n", "", "test_sums.py"),
        ("    if (taken_at > *asked_at) {", "    if (taken_at >= *asked_at + 1e9) {", "test_sums.py"),
        ("        *idle = row->bell ? *(const double *)row->bell : taken_at;\n", "", "test_sums.py"),
        ("row->bell ? *(const double *)row->bell : taken_at;", "taken_at;", "test_sums.py"),
        ("        *asked_at = taken_at;\n", "", "test_sums.py"),
        ("run_steps(from, row->count, to ?", "run_steps(from, 0, to ?", ROWS),
        ("return !line->error && has_come(line, row) && !line->error;", "return !line->error;", ROWS),
        ("    return done || error;", "    return 1;", ROWS),
    ],
    "meshrt/mesh/exchange/march.c": [
        ("        if (next < high && before.core[next] == core)\n            continue;\n", "", ROUNDS),
        ("            m.held[kind & ASKS][before.core[next]]--;\n", "", ROUNDS),
        ("            m.held[what][core]--;\n", "            ;\n", ROUNDS),
        ("int what = ends ? waits(march, seats.leg[seat] + 1) : seats", "int what = seats", ROUNDS),
        ("m->tiles[leg - 1] ? TILE : REQUEST;", "1 ? TILE : REQUEST;", ROUNDS),
        ("return m->start[a] > m->start[b];", "return m->start[a] < m->start[b];", ROUNDS),
        ("return m->came[a] < m->came[b];", "return m->came[a] > m->came[b];", ROUNDS),
        ("        while (m->came[b] == m->start[b] - 1)\n            b--;\n", "", ROUNDS),
        ("one->leg, legs[place - 1]); place--)", "one->leg, legs[place - 1]) && 0; place--)", ROUNDS),
        ("return door < end ? door : end;", "return door;", ROUNDS),
    ],
    "meshrt/mesh/exchange/hop.h": [
        ("const int later = head[TIME] > *time;", "const int later = head[TIME] >= *time;", ROUNDS),
        ("+ m->beta * touched;", "+ m->beta;", ROUNDS),
        ("        now = now > *ramp ? now : *ramp;\n", "", ROUNDS),
        ("        now = now > *link ? now : *link;\n", "", ROUNDS),
        ("*ramp = *link = now + busy;", "*link = now + busy;", ROUNDS),
        ("to[HOPS * row] = passed + 1.0;", "to[HOPS * row] = passed;", ROUNDS),
        ("(*head > *ramp ? *head : *ramp) + busy;", "*head + busy;", ROUNDS),
        ("HOPS * head_row, passed + 1.0, rising);", "HOPS * head_row, passed, rising);", STRIPS),
        ("later_of(load(head, rising), *(Lanes *)ramp) + busy;", "load(head, rising) + busy;", STRIPS),
        ("(Lanes){both[3], both[2], both[1], both[0]};\n}\n\nstatic", "both;\n}\n\nstatic", BANDS),
        ("later_of(later_of(now, *ramp), *(Lanes *)link)", "later_of(now, *ramp)", STRIPS),
    ],
    "meshrt/mesh/exchange/hops.c": [
        ("from < 0 ? m.waiting + m.packets[seats.leg[seat]] :", "from < 0 ? m.waiting :", ROUNDS),
        ("head, from < 0 ? m.cores : room,", "head, room,", ROUNDS),
        ("m.crossed[port * m.links + at] += nbytes;", "m.crossed[port * m.links + at] += m.nbytes[0];", CROSSBAR),
        ("            m.entered[to] += nbytes;", "            m.entered[at] += nbytes;", CROSSBAR),
        ("m.entered[to] += nbytes;\n        sum", "m.entered[core] += nbytes;\n        sum", STRIPS),
        ("sum->fresh += seats.kind[seat] & TOUCHED ? 0 : to_line", "sum->fresh += to_line", STRIPS),
        ("seats.kind[seat] == stretch->kind &&", "", STRIPS),
        ("fresh += !(seats.kind[seat] & TOUCHED);", "", CROSSBAR),
    ],
    "meshrt/mesh/exchange/bands.c": [
        ("return port == NORTH ? row - 1 :", "return port == NORTH ? row :", BANDS),
        ("            come_in_stretch(m, stretch", "            leave_stretch(m, stretch", BANDS),
        ("        cross_lines(m, port, sum);", "        ;", BANDS),
        ("if (to > 0 && to < rows - 1)", "if (row > 0 && row < rows - 1)", BANDS),
        ("front < bands->bottom + bands->rounds;", "front < bands->bottom + bands->rounds - 1;", BANDS),
    ],
    "meshrt/mesh/exchange/onward.c": [
        ("if (nbytes > flight->reserved)", "if (nbytes > flight->reserved + 100)", CROSSBAR),
        ("leave_cores(o->all.marches[n], &o->crossed)", "leave_cores(o->all.marches[n], &(Crossing){0})", CROSSBAR),
    ],
    "meshrt/mesh/exchange/porter.py": [
        ("state[TIME] += device.beta * hop.touched", "pass", CROSSBAR),
        ("np.maximum(time, link, out=time)", "pass", CROSSBAR),
        ("np.add(state[HOPS], 1, out=head[HOPS])", "head[HOPS] = state[HOPS]", CROSSBAR),
        ("self.lines * int(np.count_nonzero(hop.touched))", "int(np.count_nonzero(hop.touched))", CROSSBAR),
        (" + turn.peak_requests * REQUEST_BYTES", "", CROSSBAR),
        ("link[...] = ramp", "link[...] = time", CROSSBAR),
    ],
    "meshrt/mesh/exchange/itinerary.py": [
        ("np.lexsort([*self._since(more), doors])", "np.lexsort([self.legs.packets.take(more), doors])", CROSSBAR),
        ("self.taken[slot] = self.taken[slot ^ self.period] = stop", "self.taken[slot] = stop", CROSSBAR),
        ("np.add.at(holds, after.take(ended[0]), legs.stops.take(ended[1]))", "pass", CROSSBAR),
    ],
    "meshrt/mesh/exchange/exchange.py": [
        ("if number > 1 or way != port:", "if way != port:", "test_crossbar.py test_tampering.py"),
        ("    ramps.settle(block)\n", "", "test_crossbar.py test_systems.py"),
    ],
    "meshrt/mesh/exchange/legs.py": [
        ("np.where(answers, REQUEST, passes))", "passes)", CROSSBAR),
    ],
    "meshrt/mesh/exchange/rounds.py": [
        ("    touched[turn.fresh] = False\n", "", CROSSBAR),
    ],
    "programs/mesh/cache.py": [
        ("number % height if", "(number + 1) % height if", "test_kvcache.py"),
        ("self.memory_of(held))", "self.memory_of(self.held))", "test_kvcache.py"),
    ],
    "programs/mesh/climb.py": [
        ("cache.memory_of(to.astype(np.int64))):", "0):", "test_kvcache.py test_memory.py"),
        ("        arriving += _above(_climbing(cache.held + arriving))\n", "        pass\n", "test_kvcache.py"),
        ("_as_full(before) & (held > 0)", "_as_full(before)", "test_kvcache.py"),
        ("np.logical_and.accumulate(passes[::-1])[::-1]", "passes", "test_kvcache.py"),
        ("goal[: total % height] += 1", "goal[height - total % height :] += 1", "test_kvcache.py"),
        ("full[1:] = held[1:] >= held[:-1]", "full[1:] = held[1:] > held[:-1]", "test_kvcache.py"),
        ("cache.moved += int(rows.sum())", "cache.moved += 1", "test_kvcache.py"),
    ],
    "meshrt/neuron/engines.py": [
        ("tile.shape[0] * hbm.dtype.itemsize", "tile.shape[0] * tile.dtype.itemsize", NEURON),
        ('self.counts["hbm_written" if way == "save" else "hbm_read"] += nbytes', "pass", NEURON),
        ("        target.saved = False\n", "", NEURON),
        ("            start = max(start, target.idle_by(write))\n", "            pass\n", NEURON),
        ("if target.ready > start and write.rewrites():", "if target.ready > start:", TOUCHED),
        ("                parts.base = end\n", "                pass\n", TOUCHED),
        ("            target.part_writes.note(end, write.extent())\n", "            pass\n", TOUCHED),
        ("cycles if cycles > least else least", "cycles", NEURON),
        ("row_bytes * slower)", "row_bytes)", NEURON),
    ],
    "meshrt/neuron/store.py": [
        ("        self.peak = self.live\n", "        self.peak = 0\n", NEURON),
        ("return self.idle if parts is None or", "return self.idle if parts is None and", TOUCHED),
    ],
    "meshrt/neuron/regions.py": [
        ("np.maximum(cells, when, out=cells)", "cells[...] = when", TOUCHED),
        ("bisect_right(rows, top) - 1", "bisect_left(rows, top)", TOUCHED),
        ("return at if up else at - 1", "return at", TOUCHED),
        ("if stride < 0)", "if stride > 0)", TOUCHED),
        ("column + reach > row_bytes", "column + reach >= row_bytes", TOUCHED),
        ("        return max(self.base, max(", "        return max(0.0, max(", TOUCHED),
        ("for start in starts for turn in range(size)]", "for start in starts for turn in range(1)]", TOUCHED),
        ("np.where(times > since, times, 0.0)", "times", TOUCHED),
    ],
    "meshrt/nki/tensors/patternview.py": [
        ("int(columns.max()) + width", "int(columns.max()) + 1", TOUCHED),
    ],
    "meshrt/neuron/memory.py": [
        ("        victim.as_one()\n", "", TOUCHED),
        ("if victim.dirty:", "if True:", NEURON),
        ("min(victims, key=", "max(victims, key=", NEURON),
        ("store.idle = heapq.heappop(self.idle)", "heapq.heappop(self.idle)", NEURON),
        ("if store.saved and not whole:", "if store.saved:", NEURON),
        ("victim.ready = self.core.spill(", "self.core.spill(", NEURON),
    ],
    "meshrt/neuron/isa.py": [
        ("max(min(device.least_cycles, m), n), 1", "n, 1", NEURON),
        ("passes = device.float32_passes", "passes = 1", NEURON),
        ('"transpose_macs" if is_transpose else "macs"', '"macs"', NEURON),
    ],
    "meshrt/neuron/elementwise.py": [
        ("1 if fast or buffers[0] != buffers[1] else 2", "1 if fast else 2", NEURON),
    ],
    "meshrt/neuron/timeline.py": [
        ("        self.queues[queue] = start\n", "        self.queues[queue] = 0.0\n", NEURON),
        ("min(self.engines, -(-rows * self.engines // self.partitions))", "self.engines", NEURON),
        ("        gaps.append((end, start))\n", "        pass\n", NEURON),
        ("        self.now = max(self.now, start + seconds)\n", "        self.now = start + seconds\n", TOUCHED),
    ],
    "meshrt/neuron/cores.py": [
        ("+= touched.read", "+= touched.written", HBM_TO_HBM),
    ],
    "meshrt/gpu/timing.py": [
        ("np.ceil(count / device.sms)", "(count / device.sms)", "test_timing.py"),
        ("cubes += each * each * each", "cubes += each", "test_timing.py"),
        ("np.minimum(count, device.sms)", "device.sms", "test_timing.py"),
        ("np.ceil(rows / device.sms)", "(rows / device.sms)", "test_timing.py"),
    ],
    "meshrt/gpu/gpu.py": [
        ("max(now - seconds, begin)", "begin", "test_overlapped.py"),
        ("nbytes += cost.nbytes", "nbytes += 1", GPU),
        ("now = max(now, self.host_clock)", "pass", GPU),
        ("now += between + seconds", "now += seconds", GPU),
    ],
    "meshrt/gpu/gpus.py": [
        ('rounds = 2 if kind == "reduce_sum" else 1', "rounds = 1", GPU),
        ("gpu.counters.collective_seconds += end - begin", "gpu.counters.collective_seconds += end", GPU),
        ("self.device.neighbours)", "False)", "test_all_to_all.py"),
    ],
    "meshrt/gpu/beside.py": [
        ("max(gpu.now, gpu.beside) +", "gpu.now +", "test_overlapped.py"),
        ("gpu.now = max(gpu.now, end)", "gpu.now = end", "test_overlapped.py"),
    ],
    "meshrt/gpu/codes.py": [
        ("2 * (self.scale.size + zeros)", "2 * self.scale.size", CODES),
        ("np.right_shift(halves, 3 * number, words)", "np.right_shift(halves, 2 * number, words)", CODES),
        ("np.left_shift(words[:, :, 2], 8, part)", "np.left_shift(words[:, :, 2], 4, part)", CODES),
    ],
    "meshrt/groups/pairs.py": [
        ("for far in range(step, self.size)", "for far in range(1, self.size)", "test_all_to_all.py"),
        ("times[at] = max(times[at], time)", "pass", "test_all_to_all.py"),
        ("sent.hops[at] += len(parts)", "sent.hops[at] += 1", "test_all_to_all.py"),
    ],
    "programs/gpu/coded.py": [
        ("-(-own[1] // group)", "own[1] // group", CODES),
        ("row * width + own[0], row", "row * width, row", CODES),
    ],
    "programs/gpu/experts/dispatch.py": [
        ("(len(order) - len(rows[gpu.index]))", "len(order)", EXPERTS),
        ("y[indices] += back[begin", "y[indices] = back[begin", EXPERTS),
    ],
    "programs/gpu/experts/products.py": [
        ("dropped += max(0, len(rows) - limit)", "dropped += len(rows)", EXPERTS),
        ('order = np.argsort(flat, kind="stable")', "order = np.argsort(flat)[::-1]", EXPERTS),
        ("shares[rows, choices, None] * out", "out", EXPERTS),
    ],
    "programs/gpu/headnorms.py": [
        ("np.matmul(wide, counted, out)", "np.add.reduce(wide, axis=-1, out=out)", EXPERTS),
        ("np.maximum(x, -most, out=x)", "pass", EXPERTS),
    ],
    "programs/gpu/experts/mixing.py": [
        ("if held[gpu] < room", "if True", EXPERTS),
    ],
    "programs/gpu/pipeline.py": [
        ("max(ready - gpu.now, 0.0)", "0.0", "test_pipeline.py"),
    ],
    "meshrt/groups/rings.py": [
        ("times[at] += seconds", "pass", GPU),
        ("last = times[-1] + latency", "last = times[-1]", GPU),
        ("self.sent[at] += self._on_link[out]", "self.sent[at] += 1", GPU),
        ("reads, writes = adds + stays,", "reads, writes = adds,", GPU),
        ("times[0] + step.even + latency", "times[0] + step.even", GPU),
        ("if step.comes[at]:", "if True:", GPU),
    ],
    "meshrt/gpu/meter.py": [
        ("count - old.numbers.get(name, 0)", "count", GPU),
    ],
    "meshrt/gpu/repeat.py": [
        ("gpu.host_clock += self.times * (gpu.host_clock - host)", "pass", "test_lowrank.py test_lowrank_studies.py"),
        ("count + self.times * (count - old))", "count)", "test_lowrank.py test_lowrank_studies.py"),
    ],
    "meshrt/gpu/state.py": [
        ("gpu.memory.used, gpu.memory.peak = int(used), int(peak)", "gpu.memory.used = int(used)", RESUME),
        ("gpus.sampled = any(", "_ = any(", RESUME),
        ("        traffic.clear()  # the same dictionary: plans hold on to it\n", "        traffic = {}\n", RESUME),
    ],
    "meshrt/neuron/state.py": [
        ("sbuf.idle[:] = [(float(since), int(nbytes)) for since, nbytes in room]", "pass", RESUME),
        ("psum.idle[:] = [float(since) for since in banks]", "pass", RESUME),
        ("        _restore_store(tile.store, facts[\"tiles\"][name])\n", "", RESUME),
        ("        tile.note_written()\n", "", RESUME),
        ("(_part_times_of(store, times) for times in parts)", "(None for times in parts)", "test_neuron_state.py"),
    ],
    "meshrt/gpu/memory.py": [
        ("if self.used + nbytes > self.limit:", "if self.used + nbytes >= self.limit:", GPU),
    ],
    "meshrt/gpu/operations.py": [
        ("(2 * target.size + other.size)", "(target.size + other.size)", GPU),
        ("x.size + w.size + out.size)", "x.size + w.size)", GPU),
        ("nbytes += w.codes.nbytes + gpu.size(x) + gpu.size(out)", "nbytes += w.codes.nbytes", CODES),
        ("+ 2 * gpu.size(target)", "+ gpu.size(target)", CODES),
    ],
    "meshrt/arm/cache.py": [
        ("held.move_to_end(key)", "pass", ARM),
        ("held.popitem(last=False)", "held.popitem()", ARM),
        ("self.used += bytes_of(missing)", "self.used += span[1] - span[0]", ARM),
        ("min(PIECE, nbytes - at)", "PIECE", ARM),
        ("(max(begin - at, 0), min(end - at, PIECE))", "(0, min(end - at, PIECE))", ARM),
        ("if begin < low < end:", "if False:", ARM),
        ("if high > begin and low < end:", "if high > begin:", ARM),
        ("joined(before, (span,))\n\n    def forget", "(span,)\n\n    def forget", ARM),
        ("        self.l2.forget(written)\n", "", ARM),
        ("moved[core][0] += bytes_of(missing)", "moved[core][0] += span[1] - span[0]", ARM),
        ("self.changed.pop(old, _NONE)", "((0, PIECE),)", ARM),
        ("self.changed = {key: spans for key, spans in self.changed.items() if key[0] != buffer}", "pass", ARM),
    ],
    "meshrt/arm/bus.py": [
        ("share = left / len(waiting)", "share = total / len(rates)", ARM),
        ("min(cap, size / busy) if busy else cap", "cap", ARM),
    ],
    "meshrt/arm/core.py": [
        ("max(self.registers, min(registers, self.device.registers))", "max(self.registers, registers)", ARM),
        ("16 * (loads + stores)", "16 * loads", ARM),
        ("+= tally.operations * times", "+= tally.operations", ARM),
        ("caches.slc_bytes + bytes_of(span for _, span in written)", "caches.slc_bytes", ARM),
        ("others = prod(grid) // grid[axis]", "others = prod(grid)", ARM),
        ('self.pipes["stores"] / cluster.stores', "0.0", ARM),
    ],
    "meshrt/arm/spill.py": [
        ("key=lambda other: needed[other])", "key=lambda other: -needed[other])", ARM),
        (" and needed[victim] < NEVER:", ":", ARM),
        ("changed.discard(victim)", "pass", ARM),
    ],
    "meshrt/arm/soc.py": [
        ('max(self.flash_free, self.system["seconds"])', 'self.system["seconds"]', FLASH),
        ("late = max(0.0, time - now)", "late = time - now", f"{FLASH} test_arm_split.py"),
        ("if core.index != cost.core:", "if True:", ARM),
        ("(self.count - len(done)) * last + sum", "sum", f"{ARM} test_arm_trace.py"),
        ("several = len(costs) > 1", "several = True", f"{ARM} test_arm_trace.py"),
        ("phase.system[key] += n - system[key]", "phase.system[key] += n", ARM),
    ],
    "meshrt/arm/repeat.py": [
        ("times * (count - old[name])", "times * count", "test_arm_repeat.py"),
        ("count + times * (count - system[name])", "count", "test_arm_repeat.py"),
    ],
    "meshrt/arm/memory.py": [
        ("self.used -= self.sizes.pop(name)", "self.sizes.pop(name)", DRAM),
        ("if self.used + nbytes > ", "if self.used + nbytes >= ", DRAM),
    ],
    "meshrt/csl/machine/trains.py": [
        ("            break\n", "            continue\n", TRAINS),
        ("sum(len(train.data) - train.at for train in trains)", "sum(len(train.data) for train in trains)", TRAINS),
        ("train.gap * (train.at + taken - 1)", "train.gap * (train.at + taken)", TRAINS),
        ("    if train.at == len(train.data):\n            trains.popleft()\n", "    trains.popleft()\n", TRAINS),
        ("trains[at - 1].head > train.head and", "False and", TRAINS),
    ],
    "meshrt/csl/machine/router.py": [
        ("self.at = 0 if self.ring else self.at - 1", "self.at = self.at - 1", "test_csl_switches.py"),
    ],
    "meshrt/csl/machine/filters.py": [
        ("raw >> 16 <= self.most", "raw >> 16 < self.most", "test_csl_switches.py"),
        ("number >= self.limit", "number > self.limit", "test_csl_switches.py"),
    ],
    "meshrt/csl/machine/vectors.py": [("stride <= reach", "stride < reach", "test_csl_language.py")],
    "meshrt/csl/machine/wafer.py": [
        ("self.counters.wavelets += count", "self.counters.wavelets += 1", CSL),
        ("Train(head + COSTS.ramp + hops * COSTS.hop, gap,", "Train(head + COSTS.ramp, gap,", CSL),
        ("core.sent[color] = head + gap * count", "core.sent[color] = head", CSL),
        ("self.at(self.now, core.poll, None)", "pass", CSL),
    ],
}  # fmt: skip

MUTATIONS = tuple(Mutation(file, *row) for file, rows in TABLE.items() for row in rows)
