"""Random functions of two pointers, one instruction a packet: vectors, scalars, predicates, memory, loops."""

from __future__ import annotations

import random

INPUT_BYTES, OUTPUT_BYTES = 1024, 4096
_SCALARS = [f"r{number}" for number in range(4, 12)]
_VECTORS = [f"v{number}" for number in range(10)]
_PAIRS = [f"v{number + 1}:{number}" for number in range(0, 10, 2)]


def _vector(picks: random.Random) -> str:
    a, b, c = (picks.choice(_VECTORS) for _ in range(3))
    pair, other = picks.choice(_PAIRS), picks.choice(_PAIRS)
    scalar = picks.choice(_SCALARS[:4])
    return picks.choice(
        [
            f"{a}.w += vrmpy({b}.ub,{scalar}.b)",
            f"{pair}.h = vmpy({a}.ub,{scalar}.b)",
            f"{pair}.h = vmpa({other}.ub,{scalar}.b)",
            f"{pair}.w += vadd({a}.h,{b}.h)",
            f"{a}.w = vadd({b}.w,{c}.w)",
            f"{a} = vxor({b},{c})",
            f"{a} = {b}",
            f"{pair} = vcombine({a},{b})",
            f"{a} = valign({b},{c},{scalar})",
            f"{a}.h = vasr({b}.w,{c}.w,{scalar})",
            f"{a}.ub = vpack({b}.h,{c}.h):sat",
            f"{pair} = vshuff({pair.split(':')[0]},{'v' + pair.split(':')[1]},{scalar})",
            f"{a}.ub = vabsdiff({b}.ub,{c}.ub)",
            f"q0 = vcmp.gt({a}.b,{b}.b)",
            f"{a} = vmux(q0,{b},{c})",
        ]
    )


def _scalar(picks: random.Random) -> str:
    a, b, c = (picks.choice(_SCALARS) for _ in range(3))
    predicate = picks.choice(["p0", "p1"])
    guard = f"if ({picks.choice(['', '!'])}{predicate}) "
    return picks.choice(
        [
            f"{a} = add({b},{c})",
            f"{a} = sub({b},{c})",
            f"{a} = add({b},##123456)",
            f"{a} = mpyi({b},{c})",
            f"{a} += mpyi({b},{c})",
            f"{a} = asl({b},#3)",
            f"{a} = mux({predicate},{b},{c})",
            f"{predicate} = cmp.gt({a},{b})",
            f"{predicate} = and(p0,p1)",
            f"{guard}{a} = add({b},#7)",
            f"r5:4 = combine({a},{b})",
            "r7:6 = add(r5:4,r9:8)",
        ]
    )


def _memory(picks: random.Random) -> str:
    vector, scalar = picks.choice(_VECTORS), picks.choice(_SCALARS)
    place, line = 4 * picks.randrange(64), picks.randrange(8)
    guard = f"if ({picks.choice(['', '!'])}{picks.choice(['p0', 'p1'])}) "
    return picks.choice(
        [
            f"{vector} = vmem(r0+#{line % 7})",
            f"{vector} = vmem(r1+#{line % 7})",
            f"{vector} = vmem(r2+#{line % 4})",
            f"{vector} = vmemu(r3+#{line % 3})",
            f"vmem(r1+#{line % 7}) = {vector}",
            f"vmem(r2+#{line % 4}) = {vector}",
            f"vmem(r2++#1) = {vector}",
            f"vmemu(r3+#{line % 3}) = {vector}",
            f"if (q0) vmem(r1+#{line % 7}) = {vector}",
            f"{scalar} = memw(r0+#{place})",
            f"{scalar} = memub(r1+#{place})",
            f"memw(r1+#{place}) = {scalar}",
            f"memh(r3+#{place}) = {scalar}",
            f"{guard}memw(r1+#{place}) = {scalar}",
            f"memw(r1+#{place}) += {scalar}",
            f"memd(r1+#{8 * (place // 8)}) = r7:6",
        ]
    )


def random_function(seed: int, name: str, count: int) -> str:
    """Write a function; ``r2`` and ``r3`` point into the output too, the latter to no multiple of a vector."""
    picks = random.Random(seed)
    kinds = [_vector, _scalar, _memory]
    body = [picks.choice(kinds)(picks) for _ in range(count)]
    lines = ["r2 = add(r1,#1024)", "r3 = add(r1,#1984)", "p0 = cmp.gt(r1,r0)", "p1 = cmp.gt(r0,r1)"]
    lines += [f"v{number} = vmem(r0+#{number % 7})" for number in range(10)]
    lines += [f"r{number} = memw(r0+#{20 * number})" for number in range(4, 12)]
    lines += ["q0 = vcmp.gt(v0.b,v1.b)"]
    label = f".LBB{seed}_1"
    head = _packets([*lines, f"loop0({label},#3)"] if seed % 2 else lines)
    tail = [f"vmem(r12+#{number % 7}) = v{number}" for number in range(7)] + ["r12 = add(r12,#896)"]
    tail += [f"vmem(r12+#{number}) = v{number + 7}" for number in range(3)]
    tail += [f"memw(r12+#{512 + 4 * number}) = r{number}" for number in range(4, 12)]
    text = [f"\t.globl\t{name}", "\t.p2align\t4", f"\t.type\t{name},@function", f"{name}:", *head]
    if seed % 2:
        text += [f"{label}:", *_packets(body)[:-1], "\t} :endloop0"]
    else:
        text += _packets(body)
    text += [*_packets(["r12 = add(r1,#2560)", *tail, "jumpr r31"]), f".Lfunc_end_{name}:"]
    return "\n".join(text) + "\n"


def _packets(instructions: list[str]) -> list[str]:
    return [line for item in instructions for line in ("\t{", f"\t\t{item}", "\t}")]
