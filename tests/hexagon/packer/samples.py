"""Instructions of every row; ``D``, ``W``, ``R``, ``RR``, ``P``, ``Q`` stand for what is written."""

from __future__ import annotations

import re

VECTOR = """D.w += vrmpy(v20.ub,r0.b)
D.w = vrmpy(v20.ub,v21.b)
W.w += vrmpy(v21:20.ub,r0.b,#0)
W.h = vmpy(v20.ub,r0.b)
W.h = vmpa(v21:20.ub,r0.b)
W.w += vadd(v20.h,v21.h)
W.w = vadd(v20.h,v21.h)
W.h = vadd(v20.ub,v21.ub)
W.w = vmpy(v20.h,v21.h)
W.w = vmpy(v20.h,r0.h)
D.h = vmpy(v20.h,r0.h):<<1:rnd:sat
D.h = vmpyi(v20.h,r0.b)
D.h = vmpyi(v20.h,v21.h)
D.w = vmpyie(v20.w,v21.uh)
D.w = vmpyi(v20.w,r0.h)
D.w += vmpyo(v20.w,v21.h):<<1:rnd:sat:shift
D.h = vdmpy(v20.ub,r0.b)
D.w = vdmpy(v20.h,v21.h):sat
W.h = vtmpy(v21:20.b,r0.b)
D.w = vadd(v20.w,v21.w)
D.ub = vadd(v20.ub,v21.ub):sat
W.w = vadd(v21:20.w,v23:22.w)
W.w = vsub(v21:20.w,v21:20.w)
W = vcombine(v20,v21)
D = v20
D = vxor(v20,v20)
D = vand(q0,r0)
Q = vand(v20,r0)
D = vmux(q0,v20,v21)
Q = vcmp.gt(v20.w,v21.w)
D.ub = vavg(v20.ub,v21.ub):rnd
D.ub = vabsdiff(v20.ub,v21.ub)
D = valign(v20,v21,r0)
D = vlalign(v20,v21,#4)
D = vror(v20,r0)
D = vdelta(v20,v21)
D.h = vshuff(v20.h)
W = vshuff(v20,v21,r0)
W = vdeal(v20,v21,r0)
D.b = vshuffe(v20.b,v21.b)
W.h = vshuffoe(v20.h,v21.h)
D.b = vpacke(v20.h,v21.h)
D.ub = vpack(v20.h,v21.h):sat
W.uh = vunpack(v20.ub)
W.uh = vzxt(v20.ub)
D.w = vasr(v20.w,r0)
D.w += vasr(v20.w,r0)
D.h = vasr(v20.w,v21.w,r0):rnd:sat
D.ub = vsat(v20.h,v21.h)
D.h = vround(v20.w,v21.w):sat
D.h = vsplat(r0)
D.w = vinsert(r0)
D.b = vlut32(v20.b,v21.b,r0)
D.b |= vlut32(v20.b,v21.b,r0)
W.h = vlut16(v20.b,v21.h,r0)
D.uh = vcl0(v20.uh)
D.h = vabs(v20.h)
if (q0) D.b += v20.b
if (p0) D = v20
Q = and(q0,q2)
Q = vsetq(r0)""".split("\n")

SCALAR = """R = add(r20,r21)
R = sub(#3,r20)
R = and(r20,#4)
R = mux(p0,r20,r21)
R = #4
R = ##100000
R = add(r20,##100000)
R = r20
RR = combine(r20,r21)
RR = r21:20
R = combine(r20.l,r21.h)
R = zxth(r20)
R = abs(r20)
R = asl(r20,#3)
R |= asl(r20,#3)
R = addasl(r20,r21,#3)
R = add(r20,mpyi(#4,r21))
R = add(r20,add(r21,#3))
R += add(r20,#3)
R = extractu(r20,#3,#4)
R = max(r20,r21)
R = mpyi(r20,r21)
R += mpyi(r20,#12)
RR = mpy(r20,r21)
RR = add(r21:20,r23:22)
R = vsplatb(r20)
P = tstbit(r20,#3)
P = cmp.eq(r20,#3)
P = cmp.gt(r20,r21)
P = cmp.eq(r21:20,r23:22)
P = cmpb.eq(r20,#3)
P = and(p0,p1)
R = p0
P = r20
if (p0) R = add(r20,#4)
if (!p0) R = #3
if (p0) RR = combine(r20,r21)
R = sfmpy(r20,r21)""".split("\n")

MEMORY = """R = memw(r20+#4)
R = memub(r20++#1)
RR = memd(r20+#8)
R = memw(r20+r21<<#2)
if (p0) R = memw(r20+#4)
memw(r20+#4) = r21
memw(r20+#4) = #3
memd(r20+#8) = r23:22
if (p0) memw(r20+#4) = r21
memw(r20+#4) += r21
D = vmem(r20+#1)
D.cur = vmem(r20+#1)
D.tmp = vmem(r20+#1)
D = vmemu(r20+#1)
vmem(r20+#1) = v20
vmemu(r20+#1) = v20
if (q0) vmem(r20+#1) = v20""".split("\n")

CONTROL = """jump .Lx
if (p0) jump .Lx
jumpr r31
loop0(.Lx,#4)
loop1(.Lx,r20)""".split("\n")


def instance(template: str, number: int) -> str:
    """Write an instruction that writes registers of its own; ``number`` is below 4."""
    names = {
        "W": f"v{2 * number + 1}:{2 * number}", "D": f"v{2 * number + 1}", "Q": f"q{min(number, 3)}",
        "RR": f"r{2 * number + 5}:{2 * number + 4}", "R": f"r{2 * number + 5}", "P": f"p{number}",
    }  # fmt: skip
    text = re.sub(r"^((?:if \(.*?\) )?)(W|D|RR|R|P|Q)\b", lambda match: match[1] + names[match[2]], template)
    if "++" in text:
        text = text.replace("r20++", f"r{24 + number}++")
    return text
